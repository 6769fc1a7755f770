package kafkabroker_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/broker/kafkabroker"
)

func TestAURLSaysWhatIsWrongWithItAndNeverShowsASecret(t *testing.T) {
	for url, want := range map[string]string{
		"kafka://host:9092":                                         "",
		"kafka://a:9092,b:9092":                                     "",
		"kafka://user:geheim@host:9092?tls=true":                    "",
		"kafka://user:geheim@host:9092?sasl=scram-sha-512&tls=true": "",
		"kafka://host:9092?sasl=plain":                              "no user",
		"kafka://user:geheim@host:9092?sasl=kerberos":               "unknown sasl mechanism",
		"kafka://host:9092?password=geheim":                         "parameter password",
		"kafka://host:9092/orders":                                  "path",
		"kafka://:9092":                                             "no host",
		"kafka://user:geheim@":                                      "no host",
		"http://user:geheim@host":                                   "does not begin with kafka://",
		"geheim":                                                    "does not begin",
		"kafka://user:geheim@host:90 92":                            "not a URL",
	} {
		_, err := kafkabroker.Options(url)
		switch {
		case (err == nil) != (want == ""):
			t.Errorf("%s: %v, want %q", url, err, want)
		case err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "geheim")):
			t.Errorf("%s: %v, want %q and no secret", url, err, want)
		}
	}
	got := kafkabroker.RedactURL("kafka://user:geheim@host:9092?tls=true&token=geheim")
	if want := "kafka://user:…@host:9092?tls=true&…"; got != want {
		t.Errorf("redacted: %s, want %s", got, want)
	}
}

func TestAConfigThatCannotWorkIsRefused(t *testing.T) {
	good := kafkabroker.SourceConfig{Brokers: []string{"host:9092"}, Group: "g", Topics: []string{"t"}}
	for want, edit := range map[string]func(*kafkabroker.SourceConfig){
		"no brokers":       func(c *kafkabroker.SourceConfig) { c.Brokers = nil },
		"keep one":         func(c *kafkabroker.SourceConfig) { c.URL = "kafka://host:9092" },
		"Group is not set": func(c *kafkabroker.SourceConfig) { c.Group = "" },
		"Topics is empty":  func(c *kafkabroker.SourceConfig) { c.Topics = nil },
		"blank":            func(c *kafkabroker.SourceConfig) { c.Topics = []string{" "} },
		"is negative":      func(c *kafkabroker.SourceConfig) { c.MaxAhead = -1 },
		"to the server":    func(c *kafkabroker.SourceConfig) { c.ServerSide, c.SessionTimeout = true, time.Second },
	} {
		cfg := good
		edit(&cfg)
		if _, err := kafkabroker.NewSource(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := kafkabroker.NewSource(good); err != nil {
		t.Error(err)
	}
}
