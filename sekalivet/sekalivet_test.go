package sekalivet

import (
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/analysistest"
)

// root is the module's: its testdata is loaded with the real libraries.
const root = ".."

// everything reports what all checks find, so that each package of testdata
// shows too that no other check is wrong about it.
var everything = &analysis.Analyzer{
	Name:     "everything",
	Doc:      "all checks at once",
	Requires: []*analysis.Analyzer{scanAnalyzer},
	Run: func(pass *analysis.Pass) (any, error) {
		r := pass.ResultOf[scanAnalyzer].(*report)
		for _, found := range r.findings {
			for _, d := range found {
				pass.Report(d)
			}
		}
		for _, d := range r.comments {
			pass.Report(d)
		}
		return nil, nil
	},
}

// ready has the modules downloaded that testdata needs, for analysistest loads
// without a network.
func ready(t *testing.T, patterns ...string) {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", append([]string{"list", "-deps"}, patterns...)...)
	list.Dir = root
	if out, err := list.CombinedOutput(); err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
}

func TestEachCheckFindsWhatIsWrongAndLeavesAloneWhatIsRight(t *testing.T) {
	patterns := []string{"./sekalivet/testdata/src/..."}
	ready(t, patterns...)
	analysistest.Run(t, root, everything, patterns...)
}

func TestSuggestedFixesMendWhatIsSafeToMend(t *testing.T) {
	ready(t, "./sekalivet/testdata/fixes")
	analysistest.RunWithSuggestedFixes(t, root, everything, "./sekalivet/testdata/fixes")
}

// Clients that are no dependency of Sekali have stand-ins of a few lines.
func TestLibrariesThatSekaliDoesNotUseAreKnownByName(t *testing.T) {
	analysistest.Run(t, filepath.Join(analysistest.TestData(), "gopath"), everything, "example.com/shop/...")
}
