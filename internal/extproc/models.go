package extproc

import (
	"encoding/json"
	"iter"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// keys ranges over what this plugin serves.
func (srv *Server) keys(snap *worker.Snapshot) iter.Seq[worker.Key] {
	return func(yield func(worker.Key) bool) {
		for _, k := range snap.Keys() {
			if k.Namespace == srv.cfg.Namespace && !yield(k) {
				return
			}
		}
	}
}

func (srv *Server) onlyModel(snap *worker.Snapshot) worker.Key {
	var only worker.Key
	for k := range srv.keys(snap) {
		if only.Model != "" {
			return worker.Key{}
		}
		only = k
	}
	return only
}

// known lists the models for somebody who asked for another one.
func (srv *Server) known(f *failure) string {
	if f != &failUnknownModel {
		return ""
	}
	var names []string
	for k := range srv.keys(srv.view.Load()) {
		if len(names) == 20 {
			break
		}
		names = append(names, k.Model)
	}
	return " Known: " + strings.Join(names, ", ") + "."
}

// models answers GET /v1/models from the view.
func (srv *Server) models() *immediate {
	type model struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		OwnedBy string `json:"owned_by"`
	}
	list := struct {
		Object string  `json:"object"`
		Data   []model `json:"data"`
	}{Object: "list", Data: []model{}}
	for k := range srv.keys(srv.view.Load()) {
		list.Data = append(list.Data, model{ID: k.Model, Object: "model", OwnedBy: "baton"})
	}
	body, err := json.Marshal(list)
	if err != nil {
		return immediateOf(&failInternal, false)
	}
	return &immediate{status: 200, set: []kv{{"content-type", "application/json"}}, body: body, detail: "baton_models"}
}
