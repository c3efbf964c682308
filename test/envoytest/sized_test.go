//go:build e2e

package envoytest

import "io"

// sizedBody tells sendFrom how long a body is.
type sizedBody struct {
	io.Reader
	size int
}
