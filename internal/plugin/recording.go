package plugin

import (
	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/internal/record"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// newRecorder makes the recorder, if decisions are recorded.
func newRecorder(p *plugin) (err error) {
	var stores []record.Store
	if s := p.cfg.Record.Store(); s != nil {
		stores = append(stores, s)
	}
	if len(stores) == 0 {
		return nil
	}
	p.recorder, err = record.New(record.Config{
		Version: Version(), Stores: stores, Log: p.log, Lost: p.tele.Instruments.RecordLost,
		World:  func() *worker.Snapshot { return p.board.Load().Snapshot },
		Speeds: func(s *worker.Snapshot) []record.Speed { return p.server.Paces.Speeds(s) },
	})
	return err
}

// recordWarnings says that decisions are not recorded.
func recordWarnings(r *record.Recorder) []admin.Warning {
	why := r.Failing()
	if why == "" {
		return nil
	}
	return []admin.Warning{{Tag: "RECORD", Text: "Decisions are not recorded (" + cut(why) + "): see record.dir, and whether its disk is full. Requests are served all the same"}}
}
