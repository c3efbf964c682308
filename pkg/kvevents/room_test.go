package kvevents

import (
	"bufio"
	"encoding/binary"
	"net"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// The bytes of live messages that wait to be judged are bounded. A publisher of large
// ones must wait.
func TestLiveMessagesWaitForRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := handStream(t, "", Hooks{})
		ss := s.session
		here, far := net.Pipe()
		ss.conn = &conn{nc: here, peer: "w:1", maxBytes: 16 << 20, r: bufio.NewReaderSize(here, readBuffer)}
		var both sync.WaitGroup
		both.Go(func() { s.receive(ss) })
		large := payload(t, 0, event{"beside": make([]byte, 6<<20)})
		both.Go(func() {
			for n := range uint64(10) {
				frames := binary.BigEndian.AppendUint64([]byte{flagMore, 0, flagMore, 8}, n) // an empty topic, then the sequence
				_, _ = far.Write(append(binary.BigEndian.AppendUint64(append(frames, flagLong), uint64(len(large))), large...))
			}
			_ = far.Close()
		})
		for range 7 {
			synctest.Wait()
			require.Len(t, ss.inbox, 3, "18 MiB")
			s.inTurn(func() { s.takeLive(<-ss.inbox) })
		}
		for range 3 {
			m, ok := <-ss.inbox
			require.True(t, ok)
			ss.inRoom.leave(len(m.payload))
		}
		both.Wait()
		require.Zero(t, ss.inRoom.held.Load())
		_, ok := <-ss.inbox
		require.False(t, ok)
	})
}
