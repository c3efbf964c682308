package plugin

import (
	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/record"
	"github.com/seed-60ae5743/baton/internal/replay"
	"github.com/seed-60ae5743/baton/internal/shadow"
	"github.com/seed-60ae5743/baton/internal/trouble"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// newRecorder makes the recorder, if decisions are recorded, and the shadow of a second policy.
func newRecorder(p *plugin) (err error) {
	var stores []record.Store
	if s := p.cfg.Record.Store(); s != nil {
		stores = append(stores, s)
	}
	if p.cfg.Shadow.Routing != nil {
		active, err := p.cfg.Simulated(p.cfg.Routing)
		if err != nil {
			return err
		}
		another, err := p.cfg.Simulated(p.cfg.ShadowRouting())
		if err != nil {
			return err
		}
		m := shadow.Memory()
		p.shadow = shadow.New(m, active, another)
		stores = append(stores, m)
	}
	if len(stores) == 0 {
		return nil
	}
	key, err := config.LegKey(p.cfg.Leg.KeyFile) // so that replicas name a block alike
	if err != nil {
		return err
	}
	p.recorder, err = record.New(record.Config{
		Key:     key,
		Version: Version(), Stores: stores, Log: p.log, Lost: p.tele.Instruments.RecordLost,
		World:  func() *worker.Snapshot { return p.board.Load().Snapshot },
		Speeds: func(s *worker.Snapshot) []record.Speed { return p.server.Paces.Speeds(s) },
	})
	return err
}

// recordTroubles says that decisions are not recorded.
func recordTroubles(r *record.Recorder) []trouble.Trouble {
	why := r.Failing()
	if why == "" {
		return nil
	}
	return []trouble.Trouble{{Kind: trouble.RecordLost, What: "Decisions are not recorded: " + cut(why)}}
}

// shadowState is what the page shows of the second policy; nil: there is none.
func shadowState(p *plugin) *admin.Shadow {
	if p.shadow == nil {
		return nil
	}
	return shadowOf(p.shadow.Latest())
}

// shadowOf is a result as the page shows it; nil: there is none yet.
func shadowOf(r *shadow.Result) *admin.Shadow {
	if r == nil {
		return &admin.Shadow{}
	}
	out := &admin.Shadow{At: &r.At, Why: cut(r.Why)}
	if r.Active == nil || r.Another == nil {
		return out
	}
	out.Requests, out.Minutes = r.Active.Requests, r.Active.Span.Minutes()
	add := func(name string, f *replay.Figures) {
		out.Rows = append(out.Rows, admin.ShadowRow{Name: name, Hit: f.Hit, P50: f.First.P50.Seconds(), P99: f.First.P99.Seconds()})
	}
	if r.Active.Measured != nil {
		add("measured", r.Active.Measured)
	}
	add("policy in force, simulated", &r.Active.Played)
	add("shadow policy, simulated", &r.Another.Played)
	if e := r.Active.Error; e != nil {
		out.Error = &admin.ShadowRow{Hit: e.Hit, P50: e.P50, P99: e.P99}
	}
	return out
}
