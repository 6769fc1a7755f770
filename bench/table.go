package bench

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// WriteTable writes a report for people.
func (r *Report) WriteTable(w io.Writer) error {
	fmt.Fprintf(w, "%s; %d rounds of %.1f s for each, in turns; medians.", r.Database, r.Rounds, r.Seconds)
	for _, name := range slices.Sorted(keysIn(r.Settings)) {
		fmt.Fprintf(w, " %s=%s", name, r.Settings[name])
	}
	fmt.Fprint(w, "\n\n")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "mode\tbatch\tworkers\tduplicates\tkept rows\tkeys\tmessages/s\tspread\tto hand-written\tto the limit\tto Handle\tto Handle, 1 a transaction\t")
	for _, x := range r.Runs {
		order := "random"
		if x.TimeOrder {
			order = "time-ordered"
		}
		mode := string(x.Mode)
		if x.HotRows > 0 {
			mode += fmt.Sprintf(", %d hot rows", x.HotRows)
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%.0f%%\t%d\t%s\t%.0f\t%.0f–%.0f\t%s\t%s\t%s\t%s\t\n", mode, x.Batch, x.Workers, 100*x.Duplicates,
			x.KeptRows, order, x.PerSecond, x.Lowest, x.Highest, ratio(x.RatioHandwritten), ratio(x.RatioLimit), ratio(x.RatioHandle), ratio(x.RatioAlone))
	}
	return t.Flush()
}

func ratio(x float64) string {
	if x == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f×", x)
}

func keysIn(m map[string]string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}
