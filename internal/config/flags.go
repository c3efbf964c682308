package config

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/strictyaml"
)

// ErrUsage marks errors of the command line or the configuration.
var ErrUsage = errors.New("usage")

// Usage marks err as an error of the command line or the configuration.
func Usage(err error) error { return usageError{err} }

type usageError struct{ err error }

func (u usageError) Error() string   { return u.err.Error() }
func (u usageError) Unwrap() []error { return []error{u.err, ErrUsage} }

// NewFlagSet returns an empty set of flags for a command. Help and errors go to stderr.
func NewFlagSet(name, summary string, stderr io.Writer) *flag.FlagSet {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		fmt.Fprintf(stderr, "%s\n\nFlags of extproc %s:\n", summary, name)
		fs.PrintDefaults()
	}
	return fs
}

// ParseFlags sets the flags of fs as package flag would, with two differences: flags may
// stand before, between and behind the other arguments, and it reports every mistake at
// once, one a line. An empty argument that is no flag's value is passed over: templates
// leave such ones where a condition does not hold. At most the given number of other arguments is allowed; they are in
// fs.Args afterwards.
func ParseFlags(fs *flag.FlagSet, args []string, most int) error {
	var errs []error
	var others []string
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		switch arg {
		case "--":
			others, args = append(others, args...), nil
			continue
		case "":
			continue
		}
		if arg == "-" || !strings.HasPrefix(arg, "-") {
			others = append(others, arg)
			continue
		}
		name, value, given := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-"), "=")
		f := fs.Lookup(name)
		switch {
		case f == nil && (name == "help" || name == "h"):
			fs.Usage()
			return flag.ErrHelp
		case f == nil:
			errs = append(errs, unknownFlag(fs, name))
			if most == 0 && !given && len(args) > 0 && !strings.HasPrefix(args[0], "-") {
				args = args[1:] // its value
			}
			continue
		case given:
		case yesNoFlag(f):
			value = "true"
			if len(args) > 0 && slices.Contains([]string{"true", "false", "yes", "no", "on", "off", "0", "1"}, args[0]) {
				errs = append(errs, fmt.Errorf("%s: --%s %s: expected --%s=true or --%s=false", fs.Name(), name, args[0], name, name))
				args = args[1:]
				continue
			}
		case len(args) == 0:
			errs = append(errs, fmt.Errorf("%s: --%s: expected %s", fs.Name(), name, expectedOf(f)))
			continue
		case isFlag(fs, args[0]):
			errs = append(errs, fmt.Errorf("%s: --%s: expected %s, got the flag %s", fs.Name(), name, expectedOf(f), args[0]))
			continue
		default:
			value, args = args[0], args[1:]
		}
		if err := fs.Set(name, value); err != nil {
			errs = append(errs, badFlag(fs, f, value, err))
		}
	}
	for _, arg := range others[min(most, len(others)):] {
		errs = append(errs, unexpected(fs, arg))
	}
	if len(errs) > 0 {
		return Usage(errors.Join(errs...))
	}
	return fs.Parse(append([]string{"--"}, others...)) // so that fs.Args returns the others
}

// isFlag reports whether arg is a flag of fs with two dashes.
func isFlag(fs *flag.FlagSet, arg string) bool {
	name, is := strings.CutPrefix(arg, "--")
	name, _, _ = strings.Cut(name, "=")
	return is && fs.Lookup(name) != nil
}

func unexpected(fs *flag.FlagSet, arg string) error {
	if ext := filepath.Ext(arg); (ext == ".yaml" || ext == ".yml") && fs.Lookup("config") != nil {
		return fmt.Errorf("%s: unexpected argument %q: did you mean --config %s, or --workers %s?", fs.Name(), arg, arg, arg)
	}
	return fmt.Errorf("%s: unexpected argument %q; extproc %s --help says what it takes", fs.Name(), arg, fs.Name())
}

func unknownFlag(fs *flag.FlagSet, name string) error {
	var known []string
	fs.VisitAll(func(f *flag.Flag) { known = append(known, f.Name) })
	if best := strictyaml.Nearest(name, known); best != "" {
		return fmt.Errorf("%s: --%.60s: there is no such flag: did you mean --%s?", fs.Name(), name, best)
	}
	return fmt.Errorf("%s: --%.60s: there is no such flag; extproc %s --help lists them", fs.Name(), name, fs.Name())
}

// badFlag says what is wrong with a value. The errors of package flag's own types do not
// say what is expected.
func badFlag(fs *flag.FlagSet, f *flag.Flag, value string, err error) error {
	if want := expectedOf(f); want != aValue {
		return fmt.Errorf("%s: --%s %.60q: expected %s", fs.Name(), f.Name, value, want)
	}
	return fmt.Errorf("%s: --%s %.60q: %w", fs.Name(), f.Name, value, err)
}

const aValue = "a value"

func expectedOf(f *flag.Flag) string {
	g, is := f.Value.(flag.Getter)
	if !is {
		return aValue
	}
	switch g.Get().(type) {
	case bool:
		return "true or false"
	case int, int64:
		return "a whole number"
	case uint, uint64:
		return "a whole number that is not negative"
	case float64:
		return "a number"
	case time.Duration:
		return "a duration such as 250ms or 2s"
	}
	return aValue
}

func yesNoFlag(f *flag.Flag) bool {
	b, is := f.Value.(interface{ IsBoolFlag() bool })
	return is && b.IsBoolFlag()
}
