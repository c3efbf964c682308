package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-60ae5743/baton/test/enginesim"
)

// strike lets a fault happen and undoes it, and returns when all is well again.
// An error is one of the stage, not of what is under test. When ctx ends the
// fault is undone at once.
func (w *world) strike(ctx, life context.Context, f fault) error {
	switch {
	case f.etcd():
		w.etcdChange.Lock()
		defer w.etcdChange.Unlock()
	case f.lane():
		l := w.lanes[f.On.Index]
		l.change.Lock()
		defer l.change.Unlock()
	}
	if f.On.Model == "" {
		end := w.events.begin(f)
		defer end()
		if f.etcd() {
			return w.strikeEtcd(ctx, life, f)
		}
		return w.strikeLane(ctx, life, f)
	}
	m := w.member(f.On)
	m.change.Lock()
	defer m.change.Unlock()
	end := w.events.begin(f)
	defer end()
	return w.strikeWorker(ctx, life, m, f)
}

func (w *world) member(on target) *member {
	for _, m := range w.members {
		if m.on == on {
			return m
		}
	}
	panic("no member " + on.String())
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

func (w *world) strikeEtcd(ctx, life context.Context, f fault) error {
	if f.Kind == stopEtcd {
		err := w.etcd.Signal(unix.SIGSTOP)
		pause(ctx, f.For)
		return errors.Join(err, w.etcd.Signal(unix.SIGCONT))
	}
	err := w.etcd.Kill()
	pause(ctx, f.For)
	return errors.Join(err, w.etcd.Restart(life))
}

func (w *world) strikeLane(ctx, life context.Context, f fault) error {
	l := w.lanes[f.On.Index]
	plugin, proxy := l.now()
	var err error
	switch f.Kind {
	case termPlugin:
		err = plugin.Stop(10 * time.Second)
	case killPlugin:
		err = plugin.Kill()
	case termEnvoy:
		err = proxy.Stop(10 * time.Second)
	default:
		err = proxy.Kill()
	}
	pause(ctx, f.For)
	if f.Kind == termEnvoy || f.Kind == killEnvoy {
		return errors.Join(err, w.startEnvoy(life, l))
	}
	w.inspectPlugin(l, plugin)
	if f.Kind == termPlugin && plugin.Err() != nil {
		w.events.violate(fmt.Sprintf("lane %d: the plugin ended badly after SIGTERM: %v", l.index, plugin.Err()), lastLines(plugin.Log(), 40))
	}
	return errors.Join(err, w.startPlugin(life, l))
}

func (w *world) strikeWorker(ctx, life context.Context, m *member, f fault) error {
	engine, control := m.now()
	switch f.Kind {
	case killWorker, killEngine:
		w.inspect(ctx, m)
		if f.Kind == killWorker && m.register != nil {
			if err := m.register.Kill(); err != nil {
				return err
			}
		}
		err := engine.Kill()
		w.inspectDead(m, engine)
		pause(ctx, f.For)
		return errors.Join(err, w.again(life, m, f.Move && f.Kind == killWorker))
	case stopWorker:
		err := engine.Signal(unix.SIGSTOP)
		pause(ctx, f.For)
		return errors.Join(err, engine.Signal(unix.SIGCONT))
	case drainWorker:
		return w.drain(ctx, life, m, f)
	case dieInRequest:
		return w.die(ctx, life, m, f)
	default:
		if err := control.SetFault(ctx, injected(f)); err != nil && ctx.Err() == nil {
			return err
		}
		pause(ctx, f.For)
		return control.SetFault(life, enginesim.Fault{Mode: enginesim.FaultNone})
	}
}

// again starts the engine of a place anew, and lets it be found.
func (w *world) again(life context.Context, m *member, move bool) error {
	if move && m.register != nil {
		if err := m.register.Kill(); err != nil {
			return err
		}
	}
	return errors.Join(w.startWorker(life, m, move), w.list())
}

// die waits until a request has ended the engine, at most for the fault's time.
func (w *world) die(ctx, life context.Context, m *member, f fault) error {
	engine, control := m.now()
	if err := control.SetFault(ctx, injected(f)); err != nil && ctx.Err() == nil {
		return err
	}
	t := time.NewTimer(f.For)
	defer t.Stop()
	select {
	case <-engine.Done():
	case <-t.C:
	case <-ctx.Done():
	}
	err := control.SetFault(life, enginesim.Fault{Mode: enginesim.FaultNone})
	if err == nil && engine.Alive() {
		return nil
	}
	_ = engine.Kill() // it may be about to end
	w.inspectDead(m, engine)
	return w.again(life, m, f.Move)
}

// drain takes a worker out of discovery in order, and back.
func (w *world) drain(ctx, life context.Context, m *member, f fault) error {
	if m.model.Etcd {
		err := m.register.Stop(15 * time.Second)
		pause(ctx, f.For)
		return errors.Join(err, w.startRegister(life, m))
	}
	m.mu.Lock()
	m.unlisted = true
	m.mu.Unlock()
	err := w.list()
	pause(ctx, f.For)
	m.mu.Lock()
	m.unlisted = false
	m.mu.Unlock()
	return errors.Join(err, w.list())
}

// injected is the fault as the simulated engine knows it.
func injected(f fault) enginesim.Fault {
	modes := map[kind]enginesim.Mode{
		dieInRequest: enginesim.FaultDie, hang: enginesim.FaultHang, slow: enginesim.FaultSlow, refuse: enginesim.FaultRefuse,
		serverError: enginesim.FaultError, tooMany: enginesim.FaultError, refusal: enginesim.FaultError, nothing: enginesim.FaultEmpty, cut: enginesim.FaultTruncate,
		abort: enginesim.FaultFinishAbort, early: enginesim.FaultEarly200,
		noHandoff: enginesim.FaultNoHandoff, badHandoff: enginesim.FaultBadHandoff,
	}
	x := enginesim.Fault{
		Mode: modes[f.Kind], When: enginesim.Moment(f.Moment), Status: f.Status, Count: f.Count, Factor: f.Factor,
		Form: enginesim.Form(f.Form),
	}
	if f.Kind == tooMany {
		x.Status = 429
	}
	return x
}
