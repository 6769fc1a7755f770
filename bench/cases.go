package bench

import "github.com/sekali/sekali/internal/dburl"

// Quick returns the cases that tell most in less than a minute.
func Quick(kind dburl.Kind) []Case { return matrix(kind, []int{1, 16}, []float64{0}, []int{100}) }

// Hot returns what batches that fight over business rows come to: 50 rows, and no
// ordering key to keep those of a row together. A Consumer needs some seconds
// to find out how many of them to run at once.
func Hot(kind dburl.Kind) []Case {
	if kind == dburl.SQLite {
		return nil // it has one writer at a time
	}
	return []Case{
		{Mode: Handwritten, Batch: 1, Workers: 16, HotRows: 50},
		{Mode: Handle, Batch: 100, Workers: 16, HotRows: 50},
	}
}

// Full returns all cases but Hot's, and those with kept rows.
func Full(kind dburl.Kind) []Case {
	return matrix(kind, []int{1, 4, 16}, []float64{0, 0.2}, []int{1, 10, 100, 1000})
}

// Kept returns cases with so many rows in the table beforehand.
func Kept(kind dburl.Kind, rows int) (all []Case) {
	for _, n := range []int{0, rows} {
		for _, ordered := range []bool{false, true} {
			for _, mode := range []Mode{Handwritten, Handle, Pipelined, Batch} {
				if mode == Pipelined && kind != dburl.PostgreSQL {
					continue
				}
				c := Case{Mode: mode, Batch: 100, Workers: 1, KeptRows: n, TimeOrder: ordered}
				if mode == Handwritten {
					c.Batch = 1
				}
				all = append(all, c)
			}
		}
	}
	return all
}

func matrix(kind dburl.Kind, workers []int, duplicates []float64, batches []int) (all []Case) {
	for _, w := range workers {
		for _, d := range duplicates {
			for _, mode := range []Mode{Handwritten, Check, Process} {
				all = append(all, Case{Mode: mode, Batch: 1, Workers: w, Duplicates: d})
			}
			for _, size := range batches {
				for _, mode := range []Mode{Handle, Pipelined, Batch, Limit} {
					if mode == Pipelined && kind != dburl.PostgreSQL || size == 1 && mode != Handle {
						continue
					}
					all = append(all, Case{Mode: mode, Batch: size, Workers: w, Duplicates: d})
				}
			}
		}
	}
	return all
}
