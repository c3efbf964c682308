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
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "": slog.LevelInfo, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	l, known := levels[strings.ToLower(level)]
	if !known {
		return nil, fmt.Errorf("log level %q: expected debug, info, warn or error", level)
	}
	o := slog.HandlerOptions{Level: l}
	switch format {
	case "", "text":
		return slog.New(slog.NewTextHandler(w, &o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, &o)), nil
	default:
		return nil, fmt.Errorf("log format %q: expected text or json", format)
	}
}
