package subset

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"
)

// named is an entry as the oracle has it; port 0 is every port.
type named struct {
	ip   [16]byte
	port uint64
}

// oracle reads an entry with package net, where parseEntry uses netip.
func oracle(entry string) (n named, ok bool) {
	e := strings.TrimSpace(entry)
	host, port, err := net.SplitHostPort(e)
	brackets := strings.HasPrefix(e, "[")
	switch {
	case err == nil:
		if n.port, err = strconv.ParseUint(port, 10, 16); err != nil || n.port == 0 {
			return n, false
		}
	case brackets:
		host = strings.TrimSuffix(strings.TrimPrefix(e, "["), "]")
		if "["+host+"]" != e {
			return n, false
		}
	default:
		host = e
	}
	ip := net.ParseIP(host)
	if ip == nil || len(e) > 64 || brackets && !strings.Contains(host, ":") {
		return n, false
	}
	copy(n.ip[:], ip.To16())
	return n, true
}

// FuzzParse makes of each input every form of hint, and compares what they allow
// with a reading that keeps a plain list.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"10.0.0.1:8000,10.0.0.2", " 10.0.0.1 : 80 ,", "[fd00::1]:80,fd00::2,[fd00::3]", "::ffff:10.0.0.1,[::ffff:10.0.0.2]:9",
		"10.0.0.1:0", "[10.0.0.1]:80", "[10.0.0.1]", "fe80::1%eth0,[fe80::1%1]:80", "10.0.0.1:080", "010.0.0.1", "[[fd00::1]]:80", "[fd00::1",
		"fd00::1:8000", "a,b,,c", "", ",", "10.0.0.1:65536", "0.0.0.0:1,[::]:2", "[]", "[]:1", ":1", "1:1", "10.0.0.1:" + strings.Repeat("0", 64) + "80", "\u00a010.0.0.1\u2003",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 1<<14 { // TestAHintIsBounded has the long ones
			return
		}
		entries := strings.Split(text, ",")
		var want []named
		bad := 0
		for _, e := range entries {
			if n, ok := oracle(e); ok {
				want = append(want, n)
			} else {
				bad++
			}
		}
		half := len(entries) / 2
		forms := map[string]*Set{
			"text": Parse(structpb.NewStringValue(text)), "header": ParseHeader([]string{text}), "list": Parse(list(entries...)),
		}
		if half > 0 {
			forms["texts"] = Parse(list(strings.Join(entries[:half], ","), strings.Join(entries[half:], ",")))
		}
		for form, s := range forms {
			requireFault(t, form, s, bad, entries)
			for _, n := range want {
				requireSame(t, form, s, want, n)
				requireSame(t, form, s, want, named{n.ip, n.port + 1})
			}
			requireSame(t, form, s, want, named{[16]byte{10: 0xff, 0xff, 10, 0, 0, 1}, 8000})
		}
	})
}

// requireFault compares how many entries are at fault, and what is said of it.
func requireFault(t *testing.T, form string, s *Set, bad int, entries []string) {
	t.Helper()
	blank := !slices.ContainsFunc(entries, func(e string) bool { return strings.TrimSpace(e) != "" })
	f := s.Fault()
	require.Less(t, len(f.String()), 600, form)
	switch {
	case blank:
		require.Equal(t, Empty, f.Kind, form)
	case bad == 0:
		require.True(t, f.IsZero(), "%s: %s", form, f)
	default:
		require.Equal(t, Malformed, f.Kind, form)
		require.Equal(t, bad, f.Entries, form)
	}
}

func requireSame(t *testing.T, form string, s *Set, want []named, of named) {
	t.Helper()
	port := uint16(of.port)
	if port == 0 {
		port = 1
	}
	allowed := slices.ContainsFunc(want, func(n named) bool { return n.ip == of.ip && (n.port == 0 || n.port == uint64(port)) })
	at := netip.AddrPortFrom(netip.AddrFrom16(of.ip), port)
	require.Equal(t, allowed, s.Allows(at), "%s: %s", form, at)
	require.Equal(t, allowed, s.Allows(netip.AddrPortFrom(at.Addr().Unmap(), port)), "%s: %s, unmapped", form, at)
}
