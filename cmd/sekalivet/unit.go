package main

import (
	"encoding/json"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// unit is what matters here of the file by which go vet tells what to analyze:
// see unitchecker.Config.
type unit struct {
	Dir, ImportPath, Stdout   string
	GoFiles, IgnoredFiles     []string
	ModulePath, ModuleVersion string
	VetxOnly                  bool
}

// wholeUnit makes go vet keep the findings of a package that it wants only the
// facts of, and returns the arguments that do so. Since Go 1.26 it keeps in its
// cache what the tool prints, but takes the result of a run for facts alone,
// which prints nothing, for that of a later run too: the findings of a package
// that was first met as a dependency were never shown. What cannot be read is
// left to the tool, which says so.
func wholeUnit(args []string) []string {
	if len(args) == 0 || !strings.HasSuffix(args[len(args)-1], ".cfg") {
		return args
	}
	file := args[len(args)-1]
	text, err := os.ReadFile(file)
	if err != nil {
		return args
	}
	var u unit
	all := map[string]any{}
	if json.Unmarshal(text, &u) != nil || json.Unmarshal(text, &all) != nil || !u.hides() {
		return args
	}
	all["VetxOnly"] = false
	if text, err = json.Marshal(all); err != nil {
		return args
	}
	file = strings.TrimSuffix(file, ".cfg") + ".whole.cfg"
	if os.WriteFile(file, text, 0o600) != nil {
		return args
	}
	return append(slices.Clone(args[:len(args)-1]), file)
}

// hides tells whether go vet would take this run for that of a later one: for a
// package of the user's that has no tests in it. One with tests is analyzed by
// itself with them, as another package; its findings would come twice. One in a
// folder testdata belongs to no pattern: no later run is to show it.
func (u unit) hides() bool {
	return u.VetxOnly && u.Stdout != "" && u.ModulePath != "" && u.ModuleVersion == "" && !u.inTestdata() && !u.hasTests()
}

func (u unit) inTestdata() bool {
	return slices.Contains(strings.Split(filepath.ToSlash(u.Dir), "/"), "testdata")
}

func (u unit) hasTests() bool {
	if len(u.GoFiles) == 0 || strings.Contains(u.ImportPath, "[") { // made for the tests of another
		return true
	}
	name := packageOf(u.GoFiles[0])
	entries, _ := os.ReadDir(u.Dir) // none: then it has no tests
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		ignored := slices.ContainsFunc(u.IgnoredFiles, func(file string) bool { return filepath.Base(file) == e.Name() })
		return strings.HasSuffix(e.Name(), "_test.go") && !ignored && packageOf(filepath.Join(u.Dir, e.Name())) == name
	})
}

func packageOf(file string) string {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.PackageClauseOnly)
	if err != nil {
		return ""
	}
	return parsed.Name.Name
}
