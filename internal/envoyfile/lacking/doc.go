// Package lacking makes configurations that lack one of Baton's parts, for tests of what the check
// says of them and of what happens with them.
package lacking
