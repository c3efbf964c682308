package picker

// AppendTable appends the row of every candidate to dst, in order, with the costs that
// a Pick with the same arguments would compare.
func AppendTable(dst []Row, req *Request, c *Candidates, p *Params) []Row {
	_, _ = c.prepare(p, new(Decision))
	k := newCoster(req, c, p)
	for i := range c.Ranks {
		dst = append(dst, k.row(i, p))
	}
	return dst
}
