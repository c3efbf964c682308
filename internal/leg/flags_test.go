package leg

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/blame"
)

// The table has each flag that Envoy's documentation lists.
func TestEachOfEnvoysResponseFlagsIsRead(t *testing.T) {
	for flags, want := range map[string]fault{
		"UT": faultTimeout, "UMSDR": faultTimeout, "DT": faultTimeout, "SI": faultTimeout,
		"UC": faultLost, "UR": faultLost, "LR": faultLost, "UPE": faultLost,
		"UO": faultOverflow, "DO": faultOverflow, "UDO": faultOverflow, "OM": faultOverflow,
		"UF": faultConnect,
		"UH": faultNone, "NR": faultNone, "NC": faultNone, "DF": faultNone, "NFCF": faultNone, "LH": faultNone,
		"DI": faultNone, "FI": faultNone, "RL": faultNone, "UAEX": faultNone, "RLSE": faultNone, "IH": faultNone,
		"RFCF": faultNone, "DC": faultNone, "DR": faultNone, "DPE": faultNone, "URX": faultNone,
		"-": faultNone, "": faultNone,
		"UF,URX": faultConnect, // the flag of the retry limit begins with UR, a remote reset
		"URX,UF": faultConnect, "UO,URX": faultOverflow, "UC,URX": faultLost, "DI,UF": faultConnect, "UF,UC": faultLost, "UR,UT": faultTimeout,
		// Behind the flags come Envoy's details.
		"UF,upstream_reset_before_response_started{remote_connection_failure,delayed_connect_error:_Connection_refused}": faultConnect,
		"-,cluster_not_found": faultNone,
	} {
		require.Equal(t, want, faultOf(flags), flags)
		require.Equal(t, want == faultLost || want == faultTimeout, reached(flags), flags)
	}
}

func TestALegsReasonFollowsFromTheFault(t *testing.T) {
	for flags, want := range map[string]blame.Sight{
		"UT": blame.TimedOut, "UPE": blame.Lost, "LR": blame.Lost, "UO": blame.Overflow,
		"UC,upstream_reset_before_response_started{connection_termination},":    blame.Raced,
		"UC,upstream_reset_before_response_started{connection_termination},812": blame.Lost, "UC": blame.Lost,
		"UF,URX": blame.Unconnected, "UF,upstream_reset_before_response_started{connection_timeout}": blame.Unmade,
		"UF,upstream_reset_before_response_started{remote_connection_failure|delayed_connect_error:_Connection_refused}": blame.Unconnected,
		"UH": blame.NotSent, "-": blame.NotSent,
	} {
		require.Equal(t, want, localSight(flags), flags)
	}
}
