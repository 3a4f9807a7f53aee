package webhook

// Waiting is how many events wait for a batch.
func (r *Receiver) Waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.waiting)
}
