// Command tally tells in few lines what a long command does.
//
//	go test -json ./... | tally -name unit -watch -o unit.json   while it runs
//	go vet ./... 2>&1 | tally -name vet -follow -o vet.log       the same of any other command
//	tally -slowest 10 unit.json envoy.json                       when all have ended
//	tally -alone test.lock -- make all                           one run after another
//
// The first copies its input to a file, and prints each package that has ended and
// the whole output of each test that fails; -quiet leaves the packages out, -v adds what
// tests print that pass. The second copies its input to a file, or on without one. Both
// print a line with a clock when they begin and end, and one whenever nothing was printed
// for 20 s, which says how far the step is; -steps and -of count it.
//
// The third prints a table with a row for each file, what failed, what was skipped with
// its reason, and the slowest tests. A test with subtests is counted by them. The first and
// the third end with 1 where a test failed or a file has none; with -any, only where no file
// has one.
//
// The last waits, and says for whom, while another process holds the file, and then runs
// the command; it ends as that does.
//
// It judges nothing but that.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run is the command; it returns the exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("tally", flag.ContinueOnError)
	fs.SetOutput(stderr)
	var o watching
	follow := fs.Bool("watch", false, "tell what go test -json says on standard input, and keep it in the file of -o")
	plain := fs.Bool("follow", false, "tell that the step goes on, whose output comes on standard input, and keep it in the file of -o")
	keep := fs.String("o", "", "where the input is kept; with -follow and without it, the input is printed")
	name := fs.String("name", "tests", "what the step does")
	steps := fs.String("steps", "", "a folder in which steps are counted")
	of := fs.Int("of", 0, "with -steps: how many steps there are")
	fs.BoolVar(&o.quiet, "quiet", false, "with -watch: tell failures, and how far it is")
	fs.BoolVar(&o.verbose, "v", false, "with -watch: print also what tests print that pass")
	fs.IntVar(&o.of, "tests", 0, "with -watch: how many functions of tests there are")
	title := fs.String("title", "tests", "heading of the files' names in the table")
	slowest := fs.Int("slowest", 0, "so many of the slowest tests")
	anyFile := fs.Bool("any", false, "one file with tests is enough")
	lock := fs.String("alone", "", "run the arguments as a command while no other process holds this `file`")
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	var ok bool
	var err error
	switch {
	case *lock != "" && fs.NArg() > 0:
		code, err := alone(*lock, fs.Args(), stdin, stdout, stderr)
		if err != nil {
			_, _ = fmt.Fprintln(stderr, "tally:", err)
		}
		return code
	case (*follow && *keep != "" || *plain) && fs.NArg() == 0:
		ok, err = tellStep(stdin, stdout, *name, *steps, *of, *keep, *plain, o)
	case !*follow && !*plain && *lock == "" && fs.NArg() > 0:
		ok, err = report(fs.Args(), *title, *slowest, *anyFile, stdout)
	default:
		_, _ = fmt.Fprintln(stderr, "tally: expected -watch with -o, -follow, -alone with a command, or files that -watch has kept")
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

// tellStep tells of one step, whose output is read from in.
func tellStep(in io.Reader, w io.Writer, name, steps string, of int, keep string, plain bool, o watching) (ok bool, err error) {
	count := ""
	if steps != "" {
		n, err := next(steps)
		if err != nil {
			return false, err
		}
		count = fmt.Sprintf("%d/%d", n, of)
	}
	signal.Ignore(os.Interrupt) // Ctrl-C goes to the command as well, which may have more to say
	s := begin(w, name, count)
	if plain {
		ok, err = true, s.follow(in, keep)
		s.end("has ended")
		return ok, err
	}
	ok, err = s.watch(in, keep, o)
	if ok {
		s.end("all passed")
	} else {
		s.end("failed")
	}
	return ok, err
}
