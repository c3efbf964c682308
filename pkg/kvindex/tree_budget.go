package kvindex

func (t *Tree) makeRoom(n int) {}
