package main

import (
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The whole command, with an engine and etcd, is tested in test/register.

func TestTheSecondSignalHurries(t *testing.T) {
	seen := make(chan os.Signal, 2)
	signal.Notify(seen, syscall.SIGTERM)
	defer signal.Stop(seen)
	hurried := make(chan struct{})
	stop := hurryAtSecondSignal(func() { close(hurried) })
	defer stop()
	for i := range 2 {
		select {
		case <-hurried:
			require.Fail(t, "hurried by one signal")
		default:
		}
		require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
		select {
		case <-seen:
		case <-time.After(10 * time.Second):
			require.Fail(t, "no signal", "%d", i)
		}
	}
	select {
	case <-hurried:
	case <-time.After(10 * time.Second):
		require.Fail(t, "not hurried by two signals")
	}
}
