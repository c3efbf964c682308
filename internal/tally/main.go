// Command tally reads what `go test -json` says and tells it in few lines.
//
//	go test -json ./... | tally -watch -o unit.json   while it runs
//	tally -slowest 10 unit.json envoy.json            when all have ended
//
// The first copies its input to a file, and prints each package that has ended and
// the whole output of each test that fails; -quiet leaves the packages out. The
// second prints a table with a row for each file, what failed, what was skipped with
// its reason, and the slowest tests. A test with subtests is counted by them. Both end
// with 1 where a test failed or a file has none; with -any, only where no file has one.
//
// It runs nothing, and judges nothing but that.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run is the command; it returns the exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("tally", flag.ContinueOnError)
	fs.SetOutput(stderr)
	follow := fs.Bool("watch", false, "tell what goes by on standard input, and keep it in the file of -o")
	keep := fs.String("o", "", "with -watch: where the input is kept")
	quiet := fs.Bool("quiet", false, "with -watch: tell failures only")
	title := fs.String("title", "tests", "heading of the files' names in the table")
	slowest := fs.Int("slowest", 0, "so many of the slowest tests")
	anyFile := fs.Bool("any", false, "one file with tests is enough")
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	var ok bool
	var err error
	switch {
	case *follow && *keep != "" && fs.NArg() == 0:
		ok, err = watch(stdin, *keep, stdout, *quiet)
	case !*follow && fs.NArg() > 0:
		ok, err = report(fs.Args(), *title, *slowest, *anyFile, stdout)
	default:
		_, _ = fmt.Fprintln(stderr, "tally: expected -watch with -o, or files that it has kept")
		return 2
	}
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "tally:", err)
	}
	if err != nil || !ok {
		return 1
	}
	return 0
}
