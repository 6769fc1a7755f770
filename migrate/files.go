package migrate

import (
	"archive/zip"
	"bytes"
	"embed"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"text/template"
)

//go:embed postgres/*.sql mysql/*.sql sqlite/*.sql
var files embed.FS

// FS returns the migrations of a dialect as files with goose's annotations and
// the default names of tables, for whoever runs goose. It is empty for an
// unknown dialect.
func FS(d Dialect) fs.FS {
	n, err := namesFor(d, nil)
	if err != nil {
		return &zip.Reader{}
	}
	rendered, err := render(n)
	if err != nil {
		return &zip.Reader{}
	}
	return rendered
}

// Print writes the SQL of all migrations, for whoever runs SQL by other means.
// It may be run again, and over tables that were made by hand, except on
// SQLite, whose SQL cannot ask whether a column is there. A later Up finds
// nothing to change and records that all are applied.
func Print(w io.Writer, d Dialect, opts ...Option) error {
	text, err := plain(d, opts)
	if err == nil {
		_, err = io.WriteString(w, text)
	}
	if err != nil {
		return fmt.Errorf("print migrations: %w", err)
	}
	return nil
}

func plain(d Dialect, opts []Option) (string, error) {
	n, err := namesFor(d, opts)
	if err != nil {
		return "", err
	}
	rendered, err := render(n)
	if err != nil {
		return "", err
	}
	list, err := fs.Glob(rendered, "*.sql")
	if err != nil {
		return "", err
	}
	parts := make([]string, 0, len(list))
	for _, name := range list {
		text, err := fs.ReadFile(rendered, name)
		if err != nil {
			return "", err
		}
		parts = append(parts, "-- "+name+"\n"+upPart(string(text)))
	}
	return strings.Join(parts, "\n"), nil
}

// upPart returns the SQL between goose's annotations Up and Down.
func upPart(text string) string {
	text, _, _ = strings.Cut(text, "-- +goose Down")
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "-- +goose") {
			b.WriteString(line)
		}
	}
	return strings.TrimSpace(b.String()) + "\n"
}

// render fills the names into the files of a dialect. A zip archive in memory
// is the file system of the standard library that can be written.
func render(n names) (fs.FS, error) {
	folder := string(n.dialect)
	entries, err := files.ReadDir(folder)
	if err != nil {
		return nil, fmt.Errorf("read the migrations of dialect %q: %w", n.dialect, err)
	}
	var archive bytes.Buffer
	w := zip.NewWriter(&archive)
	for _, e := range entries {
		if err := renderFile(w, folder, e.Name(), n); err != nil {
			return nil, fmt.Errorf("fill names into migration %s: %w", e.Name(), err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("fill names into the migrations: %w", err)
	}
	rendered, err := zip.NewReader(bytes.NewReader(archive.Bytes()), int64(archive.Len()))
	if err != nil {
		return nil, fmt.Errorf("fill names into the migrations: %w", err)
	}
	return rendered, nil
}

func renderFile(w *zip.Writer, folder, name string, n names) error {
	text, err := files.ReadFile(folder + "/" + name)
	if err != nil {
		return err
	}
	t, err := template.New(name).Parse(string(text))
	if err != nil {
		return err
	}
	out, err := w.Create(name)
	if err != nil {
		return err
	}
	return t.Execute(out, n)
}
