package leg

import (
	"strconv"
	"strings"

	"github.com/seed-60ae5743/baton/internal/blame"
)

// mostSaid bounds each part of what a leg's end is told with, in bytes.
const mostSaid = 160

// mostKept is the largest request that is kept to compare a worker's words with, should
// its leg fail. Of a longer one the words are not told.
const mostKept = 4 << 10

// said tells a leg's end to those who run the router, in one line: the status of the
// answer, 0 if there is none, the path that was asked, and what else is known of it.
// Clients do not get it: it names what is inside.
func said(status int, path, what string) string {
	s := "no answer at "
	if status != 0 {
		s = strconv.Itoa(status) + " at "
	}
	path, _, _ = strings.Cut(path, "?") // a query may hold anything
	s += clipped(path)
	if what != "" {
		s += ": " + clipped(what)
	}
	return s
}

// byEnvoy tells of an answer that Envoy itself made: its response flags and details.
func byEnvoy(local string) string {
	if at := strings.LastIndexByte(local, ','); strings.Count(local, ",") > 1 { // what follows is a time
		local = local[:at]
	}
	return "Envoy: " + local
}

// metIn tells of first events that do not serve the request; named is the status that
// they name, or 0, and words are those of the error.
func metIn(seen blame.Sight, named int, words string) string {
	s := "its first events are an error"
	switch {
	case named != 0:
		s += ", " + strconv.Itoa(named)
	case seen == blame.Empty:
		return "its events end before a token"
	}
	if words != "" {
		s += ": " + words
	}
	return s
}

func clipped(s string) string {
	if len(s) > mostSaid {
		s = s[:mostSaid]
	}
	return strings.ToValidUTF8(s, "")
}
