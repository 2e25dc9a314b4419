package v1

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"
)

// Duration is a length of time: "90s" or "1h30m" in JSON, also read from a number of seconds.
type Duration time.Duration

// D gives the time.Duration.
func (d Duration) D() time.Duration { return time.Duration(d) }

// String is time.Duration's form.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalJSON writes the Go form, "1m30s".
func (d Duration) MarshalJSON() ([]byte, error) { return strconv.AppendQuote(nil, d.String()), nil }

// UnmarshalJSON reads a duration string or a number of seconds.
func (d *Duration) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	var s string
	if len(b) > 0 && b[0] == '"' {
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
	} else {
		s = string(b)
	}
	v, err := ParseDuration(s)
	if err != nil {
		return err
	}
	*d = v
	return nil
}

// ParseDuration reads "90s", "1h30m", "90" or "1.5"; a bare number is seconds.
func ParseDuration(s string) (Duration, error) {
	if f, err := strconv.ParseFloat(s, 64); err == nil {
		ns := f * float64(time.Second)
		if math.IsNaN(ns) || ns >= math.MaxInt64 || ns <= math.MinInt64 {
			return 0, fmt.Errorf("duration %q is out of range", s)
		}
		return Duration(math.Round(ns)), nil
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration: write \"90s\", \"1h30m\" or a number of seconds", s)
	}
	return Duration(v), nil
}
