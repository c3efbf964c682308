package main

import (
	"context"
	"errors"
	"io"
)

func registerCommand(_ context.Context, _ []string, _ io.Writer) error {
	return errors.New("register: not built yet")
}
