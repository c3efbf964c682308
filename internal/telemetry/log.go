package telemetry

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// NewLogger returns a logger that writes to w. level is debug, info, warn or error;
// format is text or json; "" means info, or text. Other values are errors.
func NewLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	var o slog.HandlerOptions
	switch strings.ToLower(level) {
	case "debug":
		o.Level = slog.LevelDebug
	case "", "info":
		o.Level = slog.LevelInfo
	case "warn":
		o.Level = slog.LevelWarn
	case "error":
		o.Level = slog.LevelError
	default:
		return nil, fmt.Errorf("log level %q: expected debug, info, warn or error", level)
	}
	switch format {
	case "", "text":
		return slog.New(slog.NewTextHandler(w, &o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, &o)), nil
	default:
		return nil, fmt.Errorf("log format %q: expected text or json", format)
	}
}
