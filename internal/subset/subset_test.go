package subset

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
)

// The verbs of testdata:
//
//	absent    there is no hint
//	value     the input is the hint's value as JSON
//	header    each line of the input is one line of the header, in quotes
//	allows    each line is an endpoint; the output says which may be picked
//
// The first three print the set and its fault.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var s *Set
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "absent":
				s = Parse(nil)
				require.Nil(t, ParseHeader(nil))
			case "value":
				v := new(structpb.Value)
				require.NoError(t, protojson.Unmarshal([]byte(d.Input), v), d.Pos)
				s = Parse(v)
			case "header":
				var lines []string
				for line := range strings.Lines(d.Input) {
					line = strings.TrimSuffix(line, "\n")
					require.True(t, len(line) > 1 && line[0] == '"' && line[len(line)-1] == '"', d.Pos)
					lines = append(lines, line[1:len(line)-1])
				}
				s = ParseHeader(lines)
			case "allows":
				var b strings.Builder
				for line := range strings.Lines(d.Input) {
					line = strings.TrimSpace(line)
					fmt.Fprintf(&b, "%s %s\n", map[bool]string{true: "yes", false: "no "}[s.Allows(netip.MustParseAddrPort(line))], line)
				}
				return b.String()
			default:
				d.Fatalf(t, "unknown verb %q", d.Cmd)
			}
			if f := s.Fault(); !f.IsZero() {
				return fmt.Sprintf("%s\n%s: %s\n", sizeOf(s), f.Kind, f)
			}
			return sizeOf(s) + "\n"
		})
	})
}

func list(entries ...string) *structpb.Value {
	l := new(structpb.ListValue)
	for _, e := range entries {
		l.Values = append(l.Values, structpb.NewStringValue(e))
	}
	return structpb.NewListValue(l)
}

// pods makes n endpoints of three ports each.
func pods(n int) (entries []string) {
	for i := range n {
		entries = append(entries, fmt.Sprintf("10.%d.%d.%d:%d", i/3>>16, byte(i/3>>8), byte(i/3), 8000+i%3))
	}
	return entries
}

func TestAHintIsBounded(t *testing.T) {
	all := pods(MaxEntries + 1)
	last := netip.MustParseAddrPort(all[MaxEntries-1])
	for name, v := range map[string]func(n int) *structpb.Value{
		"a list":             func(n int) *structpb.Value { return list(all[:n]...) },
		"a text":             func(n int) *structpb.Value { return structpb.NewStringValue(strings.Join(all[:n], ", ")) },
		"a list of two":      func(n int) *structpb.Value { return list(strings.Join(all[:n/2], ","), strings.Join(all[n/2:n], ",")) },
		"nothing but commas": func(n int) *structpb.Value { return list(all[0]+strings.Repeat(",", n-2), last.String()) },
	} {
		t.Run(name, func(t *testing.T) {
			s := Parse(v(MaxEntries))
			require.True(t, s.Allows(last))
			require.NotEqual(t, TooMany, s.Fault().Kind)
			s = Parse(v(MaxEntries + 1))
			require.Equal(t, TooMany, s.Fault().Kind)
			require.Equal(t, MaxEntries+1, s.Fault().Entries)
			require.Equal(t, "no endpoint", sizeOf(s))
			for _, e := range all {
				require.False(t, s.Allows(netip.MustParseAddrPort(e)))
			}
		})
	}
	strange := list(all...)
	strange.GetListValue().Values = append(strange.GetListValue().Values[:MaxEntries-2], structpb.NewBoolValue(true), structpb.NewStringValue(all[0]+","+all[1]))
	require.Equal(t, Fault{Kind: TooMany, Entries: MaxEntries + 1}, Parse(strange).Fault(), "values of other kinds count")
}

func TestAValueThatHasNoneIsAHint(t *testing.T) {
	s := Parse(new(structpb.Value))
	require.NotNil(t, s)
	require.Equal(t, WrongKind, s.Fault().Kind)
	require.False(t, s.Allows(netip.MustParseAddrPort("10.0.0.1:80")))
	require.True(t, (*Set)(nil).Allows(netip.MustParseAddrPort("10.0.0.1:80")))
	require.False(t, new(Set).Allows(netip.MustParseAddrPort("10.0.0.1:80")))
	require.True(t, (*Set)(nil).Fault().IsZero())
	require.Empty(t, Fault{}.String())
	require.False(t, Parse(list("10.0.0.1", "10.0.0.2")).Allows(netip.AddrPort{}))
}

func TestAFaultIsOneShortLine(t *testing.T) {
	f := Parse(list("a\nb"+strings.Repeat("x", 1<<20), "10.0.0.1")).Fault()
	require.Equal(t, 1, f.Entries)
	require.Less(t, len(f.String()), 200)
	require.NotContains(t, f.String(), "\n")
}

func TestAllowsDoesNotAllocate(t *testing.T) {
	s := Parse(list(append(pods(3000), "fd00::1", "10.9.9.9")...))
	for _, a := range []string{"10.0.0.1:8001", "10.9.9.9:1", "[fd00::1]:80", "[::ffff:10.0.0.1]:8001", "192.0.2.1:80"} {
		at := netip.MustParseAddrPort(a)
		require.Zero(t, testing.AllocsPerRun(100, func() { s.Allows(at) }), a)
	}
}

func BenchmarkParse(b *testing.B) {
	for _, n := range []int{1, 30, 3000} {
		entries := pods(n)
		for name, v := range map[string]*structpb.Value{"list": list(entries...), "text": structpb.NewStringValue(strings.Join(entries, ","))} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					Parse(v)
				}
			})
		}
	}
}

func BenchmarkAllows(b *testing.B) {
	for _, n := range []int{1, 30, 3000, MaxEntries} {
		s := Parse(list(pods(n)...))
		for name, at := range map[string]netip.AddrPort{
			"yes": netip.MustParseAddrPort(pods(n)[n-1]), "no": netip.MustParseAddrPort("192.0.2.1:80"),
		} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					s.Allows(at)
				}
			})
		}
	}
}

// sizeOf says how many endpoints a set allows. An address without a port counts as one.
func sizeOf(s *Set) string {
	switch {
	case s == nil:
		return "all endpoints"
	case len(s.entries) == 0:
		return "no endpoint"
	case len(s.entries) == 1:
		return "1 endpoint"
	default:
		return strconv.Itoa(len(s.entries)) + " endpoints"
	}
}
