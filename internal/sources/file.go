package sources

import (
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/discovery/file"
)

func openFile(o *opening) error {
	f, err := file.New(file.Config{Path: o.d.File, Logger: o.Log})
	if err != nil {
		return err
	}
	asked, err := o.Asking(o.guarded(f, true))
	if err != nil {
		return err
	}
	o.out = append(o.out, discovery.Named{Name: "file " + o.d.File, Source: o.guarded(asked, true)})
	return nil
}
