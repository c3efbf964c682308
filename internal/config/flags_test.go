package config

import (
	"flag"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func someFlags() (fs *flag.FlagSet, got func() []any) {
	fs = NewFlagSet("try", "Tries.", io.Discard)
	text := fs.String("listen", "", "")
	on := fs.Bool("on", false, "")
	n := fs.Int("n", 0, "")
	wait := fs.Duration("wait", 0, "")
	share := fs.Float64("share", 0, "")
	return fs, func() []any { return []any{*text, *on, *n, *wait, *share, fs.Args()} }
}

func TestFlagsStandAnywhere(t *testing.T) {
	for _, args := range [][]string{
		{"--listen", "a", "--on", "-n", "3", "--wait=2s", "--share", "0.5", "body.json"},
		{"body.json", "-listen=a", "-on", "--n=3", "-wait", "2s", "--share=0.5"},
		{"--on=true", "--listen", "a", "body.json", "--n", "3", "--wait", "2s", "--share", "0.5"},
		{"--on", "--listen", "a", "--n", "3", "--wait", "2s", "--share", "0.5", "--", "body.json"},
	} {
		fs, got := someFlags()
		require.NoError(t, ParseFlags(fs, args, 1))
		require.Equal(t, []any{"a", true, 3, 2 * time.Second, 0.5, []string{"body.json"}}, got(), "%q", args)
	}
	fs, got := someFlags()
	require.NoError(t, ParseFlags(fs, []string{"-", "--n", "-3"}, 1))
	require.Equal(t, []any{"", false, -3, time.Duration(0), 0.0, []string{"-"}}, got())
}

func TestEveryMistakeInFlagsIsALine(t *testing.T) {
	fs, _ := someFlags()
	err := ParseFlags(fs, []string{"--lisen", "a", "--on=perhaps", "--n", "many", "--wait", "5", "--share=x", "--whatever=1", "extra", "--listen"}, 0)
	require.ErrorIs(t, err, ErrUsage)
	require.Equal(t, `try: --lisen: there is no such flag: did you mean --listen?
try: --on "perhaps": expected true or false
try: --n "many": expected a whole number
try: --wait "5": expected a duration such as 250ms or 2s
try: --share "x": expected a number
try: --whatever: there is no such flag; extproc try --help lists them
try: --listen: expected a value
try: unexpected argument "extra"; extproc try --help says what it takes`, err.Error())
}

// TestAReplicasAddressIsOfEitherFamily: a manifest cannot tell which a pod gets.
func TestAReplicasAddressIsOfEitherFamily(t *testing.T) {
	for given, want := range map[string]string{"[10.0.0.1]:9002": "10.0.0.1:9002", "[fd00::7]:9002": "[fd00::7]:9002", "picker:9002": "picker:9002"} {
		c, _ := readEPP(t, "--leg-advertise", given)
		conf, err := c.Server()
		require.NoError(t, err)
		require.Equal(t, want, conf.Advertise)
	}
	_, _, err := EPP(NewFlagSet("epp", "", t.Output()), []string{"--workers", "w.yaml", "--leg-advertise", "fd00::7:9002"})
	require.ErrorContains(t, err, "leg.advertise (--leg-advertise)")
}
