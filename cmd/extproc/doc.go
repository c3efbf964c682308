// Command extproc is Baton: Envoy's external processor for serving large
// language models with prefill and decode on separate workers.
//
//	extproc serve   --config baton.yaml     run the plugin
//	extproc epp     --pool-name POOL …      the same, called as a Gateway API endpoint picker is
//	extproc check   --config baton.yaml     validate, and print the effective configuration
//	extproc explain --admin URL body.json   what would be decided for this request, and why
//	extproc version
//
// The command reads files and flags, wires the packages by hand and ends with
// exit code 0 after SIGTERM, 1 after a failure and 2 for a wrong command line
// or configuration. It decides nothing itself.
package main
