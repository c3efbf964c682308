package kvevents

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// zmqChannel subscribes to one publisher, or one broker, of Dynamo's event plane.
type zmqChannel struct {
	cfg  *Config
	addr string
}

// Name implements Channel.
func (z *zmqChannel) Name() string { return "tcp://" + z.addr }

// Run implements Channel.
func (z *zmqChannel) Run(ctx context.Context, sink Sink) {
	z.cfg.reconnect(ctx, func() error { return z.connect(ctx, sink) }, sink.Down)
}

// connect delivers the messages of one connection, and returns why it ended. Nothing is
// queued here. A slow sink makes the publisher's queue fill up; the publisher then drops
// messages, and the ids of later events show the loss.
func (z *zmqChannel) connect(ctx context.Context, sink Sink) error {
	c, err := dialZMQ(ctx, z.cfg.Dial, z.addr, typeSub, z.cfg.conn())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	defer c.close()
	defer context.AfterFunc(ctx, c.close)()
	if err := c.subscribe(planeTopic); err != nil {
		return fmt.Errorf("kvevents: subscribe at %s: %w", z.addr, err)
	}
	wg.Go(func() { c.keepalive(ctx, z.cfg.Heartbeat) })
	sink.Up()
	var frames [][]byte
	for {
		frames, err = c.receive(frames)
		if err != nil {
			return fmt.Errorf("kvevents: events of %s: %w", z.addr, err)
		}
		envelope, err := parsePlane(frames)
		if err != nil {
			sink.Refuse(BadFrames, 1)
			continue
		}
		sink.Envelope(envelope)
	}
}

// keepalive sends PINGs until ctx ends. A connection on which sending fails is closed.
func (c *conn) keepalive(ctx context.Context, every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			if c.ping() != nil {
				c.close()
				return
			}
		}
	}
}
