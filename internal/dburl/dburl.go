// Package dburl turns URLs of databases into what drivers want, and into what
// people may see.
package dburl

import (
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/go-sql-driver/mysql"
)

// MySQLDSN returns the data source name for go-sql-driver/mysql of a URL such
// as mysql://user:password@host:3306/database?param=value. The parameters are
// the driver's; the port defaults to 3306.
func MySQLDSN(u *url.URL) (string, error) {
	if u.Scheme != "mysql" && u.Scheme != "mariadb" {
		return "", fmt.Errorf("database URL with scheme %q: mysql:// is expected", u.Scheme)
	}
	cfg, err := mysql.ParseDSN("/?" + u.RawQuery)
	if err != nil {
		return "", fmt.Errorf("parameters of the database URL: %w", err)
	}
	port := u.Port()
	if port == "" {
		port = "3306"
	}
	cfg.Net, cfg.Addr = "tcp", net.JoinHostPort(u.Hostname(), port)
	cfg.User = u.User.Username()
	cfg.Passwd, _ = u.User.Password()
	cfg.DBName = strings.TrimPrefix(u.Path, "/")
	return cfg.FormatDSN(), nil
}

// secrets are parameters of URLs whose values nobody may see.
var secrets = []string{"password", "passwd", "pass", "sslpassword", "token", "secret"}

// Redact returns raw without its passwords, for logs, errors and reports. What
// cannot be read as a URL is hidden as a whole, for it may hold one anywhere.
func Redact(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return "(a URL that cannot be read)"
	}
	if _, has := u.User.Password(); has {
		u.User = url.UserPassword(u.User.Username(), "xxxxx")
	}
	q := u.Query()
	changed := false
	for name := range q {
		for _, secret := range secrets {
			if strings.EqualFold(name, secret) {
				q.Set(name, "xxxxx")
				changed = true
			}
		}
	}
	if changed {
		u.RawQuery = q.Encode()
	}
	return u.String()
}
