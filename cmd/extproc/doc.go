// Command extproc is Baton: Envoy's external processor for serving large
// language models with prefill and decode on separate workers.
//
//	extproc serve   --config baton.yaml     run the plugin
//	extproc epp     --pool-name POOL …      the same, called as a Gateway API endpoint picker is
//	extproc check   --config baton.yaml     validate, and print the effective configuration
//	extproc envoy   envoy.yaml              merge what Baton needs into your Envoy's configuration
//	extproc explain --admin URL body.json   what would be decided for this request, and why
//	extproc register --engine-url URL …      keep an engine known to the plugins, from beside it
//	extproc index   FILE                    what a dump of the index has
//	extproc version
//
// Each command has a file of its own. It reads its flags (internal/config), starts the
// plugin (internal/plugin) or the registration of an engine (internal/register), and
// prints results. Exit codes: 0 after SIGTERM, 1 after a failure, 2 for a wrong command
// line or configuration. No command decides anything about a request.
package main
