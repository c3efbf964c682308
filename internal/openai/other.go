package openai

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"strings"
)

// ScanOther reads the body on a path that this package does not know: a JSON object, or a
// form (multipart/form-data), as for audio. It reads only the model, "" if the body names
// none or is empty. What only a router may set is refused at any depth, since it is not
// known which of the inner values an engine reads as a request.
func ScanOther(contentType string, body []byte, r *Request) error {
	media, params, err := mime.ParseMediaType(contentType)
	if strings.HasPrefix(media, "multipart/") || strings.HasPrefix(strings.ToLower(contentType), "multipart/") {
		if err != nil || media != "multipart/form-data" || params["boundary"] == "" {
			return notJSON(0, "a JSON object, or multipart/form-data with its boundary")
		}
		r.reset(Other)
		return r.scanForm(body, params["boundary"])
	}
	if len(body) == 0 {
		r.reset(Other)
		return nil
	}
	if err := scan(Other, body, r, false); err != nil {
		return err
	}
	return forbiddenWithin(body, 0)
}

// forbiddenWithin refuses what only a router may set in valid JSON that begins at from, at any
// depth. A string before a colon is a key.
func forbiddenWithin(b []byte, from int) error {
	first := bytes.IndexByte(b[from:], '"')
	if first < 0 {
		return nil
	}
	for i := from + first; i < len(b); {
		end := skipString(b, i+1)
		if end < 0 {
			return notJSON(^end, "a string")
		}
		if c := skipSpace(b, end); c < len(b) && b[c] == ':' {
			if f := lookupKey(b[i+1 : end-1]); f.routerOnly() {
				return &Error{Kind: ForbiddenField, Field: f.String(), Offset: i}
			}
		}
		next := bytes.IndexByte(b[end:], '"')
		if next < 0 {
			break
		}
		i = end + next
	}
	return nil
}

const (
	maxFormParts = 1000
	maxFormValue = 1 << 20 // of a part that is not a file
)

// scanForm reads the parts of a form.
func (r *Request) scanForm(body []byte, boundary string) error {
	malformed := notJSON(0, "multipart/form-data whose parts each have a name")
	form := multipart.NewReader(bytes.NewReader(body), boundary)
	for n := 0; ; n++ {
		part, err := form.NextRawPart()
		if errors.Is(err, io.EOF) && n > 0 {
			return nil
		}
		if err != nil || n == maxFormParts {
			return malformed
		}
		disposition, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
		if err != nil || disposition != "form-data" || params["name"] == "" || len(part.Header["Content-Disposition"]) > 1 {
			return malformed
		}
		name, file := params["name"], params["filename"] != ""
		if err := r.takePart(name, file, part); err != nil {
			return err
		}
	}
}

// takePart reads one part of a form. Its name may have a suffix, as in a[] and a[b].
func (r *Request) takePart(name string, file bool, part io.Reader) error {
	base := name
	if i := strings.IndexAny(name, "[."); i >= 0 {
		base = name[:i]
	}
	f := lookup([]byte(base))
	switch {
	case f.routerOnly():
		return &Error{Kind: ForbiddenField, Field: f.String()}
	case file:
		if f == Model {
			return &Error{Kind: WrongType, Field: f.String(), Detail: "a text"}
		}
		return nil
	}
	value, err := io.ReadAll(io.LimitReader(part, maxFormValue+1))
	switch {
	case err != nil:
		return notJSON(0, "multipart/form-data that ends with its boundary")
	case len(value) > maxFormValue:
		return &Error{Kind: WrongType, Field: "form", Detail: "values of at most 1 MiB in parts that are no files"}
	case f == Model && r.Model != nil:
		return &Error{Kind: DuplicateField, Field: f.String()}
	case f == Model:
		r.Model = value
		return nil
	}
	if i := skipSpace(value, 0); i < len(value) && (value[i] == '{' || value[i] == '[') && skipValue(value, i, 1) >= 0 {
		return forbiddenWithin(value, 0)
	}
	return nil
}
