package local

import (
	"errors"
	"strings"
	"time"
)

var errFormat = errors.New("local: a format of other than a date")

// dates are the codes of Python's strftime that say something of a date, in its locale C, as
// layouts of Go.
var dates = map[byte]string{'Y': "2006", 'y': "06", 'm': "01", 'd': "02", 'B': "January", 'b': "Jan", 'A': "Monday", 'a': "Mon", 'j': "002"}

// date formats a day for the template's strftime_now. A format that says more than the day
// is refused: an engine renders the prompt at another moment.
func date(t time.Time, format string) (string, error) {
	var out strings.Builder
	for {
		text, rest, more := strings.Cut(format, "%")
		out.WriteString(text)
		if !more {
			return out.String(), nil
		}
		if rest == "" || dates[rest[0]] == "" {
			return "", errFormat
		}
		out.WriteString(t.Format(dates[rest[0]]))
		format = rest[1:]
	}
}

// today is the date of UTC, which engines have unless their time zone is set.
func today(format string) (string, error) { return date(time.Now().UTC(), format) }
