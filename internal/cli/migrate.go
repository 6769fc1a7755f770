package cli

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/sekali/sekali/migrate"
	"github.com/spf13/cobra"
)

func (a *app) migrate() *cobra.Command {
	up := &cobra.Command{Use: "up", Short: "Make the tables, or bring them up to date", Args: cobra.NoArgs}
	down := &cobra.Command{
		Use: "down", Short: "Take the newest migration back, with everything in its tables", Args: cobra.NoArgs,
	}
	status := &cobra.Command{Use: "status", Short: "Tell which migrations are applied", Args: cobra.NoArgs}
	printed := &cobra.Command{Use: "print", Short: "Print the SQL of all migrations", Args: cobra.NoArgs}
	for _, c := range []*cobra.Command{up, down, status} {
		a.databaseFlag(c)
	}
	a.outputFlag(status)
	dialect := printed.Flags().String("dialect", "", "postgres, mysql or sqlite")

	return group(
		"migrate", "Make and alter Sekali's tables",
		a.command(up, func(ctx context.Context, _ []string) error { return a.migrateStep(ctx, migrate.Up, "applied") }),
		a.command(down, func(ctx context.Context, _ []string) error { return a.migrateStep(ctx, migrate.Down, "taken back") }),
		a.command(status, func(ctx context.Context, _ []string) error { return a.migrateStatus(ctx) }),
		a.command(printed, func(context.Context, []string) error {
			switch d := migrate.Dialect(*dialect); d {
			case migrate.Postgres, migrate.MySQL, migrate.SQLite:
				return migrate.Print(a.stdout, d)
			default:
				return usagef("--dialect %q: use postgres, mysql or sqlite", *dialect)
			}
		}),
	)
}

type migrateFunc func(context.Context, *sql.DB, migrate.Dialect, ...migrate.Option) ([]migrate.Applied, error)

func (a *app) migrateStep(ctx context.Context, step migrateFunc, done string) error {
	db, err := a.open(ctx, true)
	if err != nil {
		return err
	}
	defer db.Close()
	applied, err := step(ctx, db.SQL, db.Migrations())
	for _, m := range applied {
		fmt.Fprintf(a.stdout, "%s %s (%v)\n", done, m.Name, m.Duration.Round(time.Millisecond))
	}
	if err == nil && len(applied) == 0 {
		fmt.Fprintln(a.stdout, "nothing to do")
	}
	return err
}

func (a *app) migrateStatus(ctx context.Context) error {
	db, err := a.open(ctx, false)
	if err != nil {
		return err
	}
	defer db.Close()
	states, err := migrate.Status(ctx, db.SQL, db.Migrations())
	if err != nil {
		return err
	}
	if a.output == "json" {
		type state struct {
			Version   int64      `json:"version"`
			Name      string     `json:"name"`
			AppliedAt *time.Time `json:"applied_at"`
		}
		list := make([]state, len(states))
		for i, s := range states {
			list[i] = state{Version: s.Version, Name: s.Name}
			if !s.Pending() {
				list[i].AppliedAt = &s.AppliedAt
			}
		}
		return writeJSON(a.stdout, list)
	}
	rows := [][]string{{"MIGRATION", "APPLIED"}}
	for _, s := range states {
		at := "no: run sekali migrate up"
		if !s.Pending() {
			at = s.AppliedAt.Format(time.DateTime) + " UTC"
		}
		rows = append(rows, []string{s.Name, at})
	}
	return writeTable(a.stdout, rows)
}
