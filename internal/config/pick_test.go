package config

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/picker"
)

// Every setting but the mode reaches a parameter of its own.
func TestEveryKnobOfAPickTurnsOneParameter(t *testing.T) {
	fields := reflect.TypeFor[PickConfig]().NumField()
	defaults := picker.DefaultParams()
	changed := map[int]string{}
	for i := range fields {
		name := reflect.TypeFor[PickConfig]().Field(i).Name
		if name == "Mode" {
			continue
		}
		var c PickConfig
		v := reflect.New(reflect.TypeFor[PickConfig]().Field(i).Type.Elem())
		switch v.Elem().Kind() {
		case reflect.Float64:
			v.Elem().SetFloat(0.125)
		case reflect.Int64:
			v.Elem().SetInt(7)
		case reflect.Bool: // the other way round
			full := c.filled()
			v.Elem().SetBool(!reflect.ValueOf(full).Field(i).Elem().Bool())
		}
		reflect.ValueOf(&c).Elem().Field(i).Set(v)
		p, err := c.Params()
		require.NoError(t, err, name)
		was, is := reflect.ValueOf(defaults), reflect.ValueOf(p)
		n := 0
		for k := range is.NumField() {
			if !is.Field(k).Equal(was.Field(k)) {
				require.NotContains(t, changed, k, "%s and %s turn the same parameter", name, changed[k])
				changed[k] = name
				n++
			}
		}
		require.Equal(t, 1, n, name)
		require.Equal(t, p, mustParams(t, c.filled()), "what is filled in reads back")
	}
	require.Len(t, changed, fields-1)
}

func mustParams(t *testing.T, c PickConfig) picker.Params {
	p, err := c.Params()
	require.NoError(t, err)
	return p
}
