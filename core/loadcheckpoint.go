package core

import (
	"context"
	"encoding/binary"
	mathbits "math/bits"
	"slices"

	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/logs"
)

// LoadCheckPoint returns the newest version that all members have which have been in one, and this
// rank's models of it; 0 and nothing where there is none. All ranks must call it, after the members
// have changed and after a CheckPoint that has failed. A rank that has joined gets the global model
// from another one.
//
// Each rank gets its own local model. Those of ranks that have ended go to the ranks that have
// joined, both in their order, as far as there are both: from all that have a copy at once.
// A rank that has joined has none where all that had it have ended.
//
// Where fewer have joined, one of those that keep a copy gets the model as an orphan, beside its
// own: all members together have each local model once, but for the lost ones. All ranks get these
// as orphans, without bytes. The next CheckPoint drops orphans.
//
// A model that has changed since the version was made is not loaded: one in the memory of a rank
// counts as if that had none, and comes from others that have it. ErrMismatch tells, on all ranks,
// that some were given different models of the version, that none has the global one unchanged, or
// that what some have passed on has come to a rank otherwise than it was made. The models that are
// returned are the caller's. A communicator that Split or Shrink makes begins without versions.
func (c *Comm) LoadCheckPoint(ctx context.Context) (*Loaded, error) {
	ctx, cancel := c.limit(ctx)
	defer cancel()
	e := c.holdEpoch()
	defer c.changing.Unlock()
	if err := c.loadCheckPoint(ctx, e); err != nil {
		return nil, fault.From(err, fault.ErrSystem, "load_checkpoint").In(&e.Members).
			During("load_checkpoint", 0)
	}
	p := c.models.committed
	loaded := &Loaded{Version: p.version, Global: slices.Clone(p.global),
		Local: slices.Clone(p.local), Orphans: slices.Clone(p.orphans)}
	for i := range loaded.Orphans {
		o := &loaded.Orphans[i]
		o.Model = slices.Clone(o.Model)
	}
	return loaded, nil
}

func (c *Comm) loadCheckPoint(ctx context.Context, e *epoch) error {
	m := &c.models
	has, err := c.gatherHoldings(ctx)
	if err != nil {
		return err
	}
	chosen, source, err := e.choose(has)
	if err != nil {
		return err
	}
	if source < 0 {
		m.commit(&checkpoint{}, e.number)
		return nil
	}
	places := make([]place, chosen.Places)
	mine := m.of(uint64(chosen.Version))
	if mine != nil {
		places = slices.Clone(mine.places)
	} else {
		mine = &checkpoint{version: uint64(chosen.Version), digest: chosen.Digest,
			table: chosen.Table, global: make([]byte, chosen.Global)}
	}
	table, _ := binary.Append(nil, binary.LittleEndian, places) // of a fixed size
	if err := c.broadcast(ctx, source, table); err != nil {
		return err
	}
	_, _ = binary.Decode(table, binary.LittleEndian, places) // as above
	if err := c.unchanged(ctx, e, tableOf(places) == mine.table, "the table of local models",
		mine.version, slices.Repeat([][]int{{source}}, e.Size())); err != nil {
		return err
	}
	if slices.ContainsFunc(places, func(p place) bool { return p.Local > checkpointMost }) {
		return e.Members.Errorf(fault.ErrInternal, "version %d cannot have a local model of more than "+
			"%d bytes", chosen.Version, checkpointMost)
	}
	if err := c.passGlobal(ctx, e, mine, has); err != nil {
		return err
	}
	if err := c.takePlaces(ctx, e, mine, places, has); err != nil {
		return err
	}
	m.commit(mine, e.number)
	return nil
}

// of is what is held of a version, nil if nothing is.
func (m *models) of(version uint64) *checkpoint {
	switch {
	case m.committed.version == version:
		return m.committed
	case m.staged != nil && m.staged.version == version:
		return m.staged
	}
	return nil
}

// holding is what a rank tells of the checkpoints that it has.
type holding struct {
	id      uint64
	belongs bool
	has     [2]heldVersion // committed and staged
	changed [2]bool        // its global model is not that which was made
}

type heldVersion struct{ Version, Digest, Global, Table, Places int64 }

func (h *holding) of(version int64) *heldVersion {
	for i := range h.has {
		if h.has[i].Version == version {
			return &h.has[i]
		}
	}
	return nil
}

// whole tells whether the rank has the global model of a version, as it was made.
func (h *holding) whole(version int64) bool {
	for i := range h.has {
		if h.has[i].Version == version {
			return !h.changed[i]
		}
	}
	return false
}

func (c *Comm) gatherHoldings(ctx context.Context) (all []holding, err error) {
	m := &c.models
	mine := []int64{int64(m.id), number(m.belongs)}
	for _, p := range []*checkpoint{m.committed, m.staged} {
		if p == nil {
			p = &checkpoint{}
		}
		changed := p.version > 0 && digestOf(p.global) != p.digest
		mine = append(mine, int64(p.version), p.digest, int64(len(p.global)), p.table,
			int64(len(p.places)), number(changed))
	}
	numbers, err := c.gather(ctx, ofRecovery, false, mine...)
	for of := range slices.Chunk(numbers, len(mine)) {
		all = append(all, holding{uint64(of[0]), of[1] != 0,
			[2]heldVersion{{of[2], of[3], of[4], of[5], of[6]}, {of[8], of[9], of[10], of[11], of[12]}},
			[2]bool{of[7] != 0, of[13] != 0}})
	}
	return all, err
}

// unchanged has all ranks know whether what some have got is what was made. `from` is, by rank, who
// has passed it on to that one, nil for one that has got nothing.
func (c *Comm) unchanged(ctx context.Context, e *epoch, mine bool, what string, version uint64,
	from [][]int) error {
	all, err := c.gather(ctx, ofRecovery, false, number(mine))
	if err != nil {
		return err
	}
	for rank, sources := range from {
		if all[rank] == 0 && sources != nil {
			return fault.Errorf(fault.ErrMismatch, "%s of version %d has come from %s to %s "+
				"otherwise than it was made", what, version, e.Members.Names(sources...),
				e.Members.Names(rank)).Blaming(sources...)
		}
	}
	return nil
}

// passGlobal passes the global model on to the ranks that lack it: a stripe from each that has it,
// or from one to all where those that lack it are more.
func (c *Comm) passGlobal(ctx context.Context, e *epoch, mine *checkpoint, has []holding) error {
	var holders, takers []int
	for rank := range has {
		if has[rank].whole(int64(mine.version)) {
			holders = append(holders, rank)
		} else {
			takers = append(takers, rank)
		}
	}
	from := make([][]int, e.Size())
	for _, taker := range takers {
		from[taker] = holders
	}
	if len(takers) == 0 || len(mine.global) == 0 {
		return nil
	}
	var err error
	if len(takers) > len(holders) {
		err = c.broadcast(ctx, holders[0], mine.global)
	} else {
		in, out := make([][]byte, e.Size()), make([][]byte, e.Size())
		for _, taker := range takers {
			e.addStripes(in, out, mine.global, holders, taker)
		}
		err = c.exchange(ctx, in, out)
	}
	if err != nil {
		return err
	}
	got := from[e.Rank] == nil || digestOf(mine.global) == mine.digest
	return c.unchanged(ctx, e, got, "the global model", mine.version, from)
}

// addStripes adds to an exchange that a rank gets some bytes: a stripe from each that has them. To
// the rank itself data is the memory that they come to.
func (c *epoch) addStripes(in, out [][]byte, data []byte, holders []int, taker int) {
	for i, holder := range holders {
		from, to := stripe(uint64(len(data)), i, len(holders))
		if taker == c.Rank {
			out[holder] = data[from:to]
		}
		if holder == c.Rank {
			in[taker] = data[from:to]
		}
	}
}

// choose decides which version counts, and which rank others get it from; that is -1 where there is
// none. If a version has been returned by any rank, all that belong have at least staged it.
func (c *epoch) choose(has []holding) (chosen heldVersion, source int, err error) {
	var committed int64
	least := int64(-1)
	for _, h := range has {
		committed = max(committed, h.has[0].Version)
		if newest := max(h.has[0].Version, h.has[1].Version); h.belongs &&
			(least < 0 || newest < least) {
			least = newest
		}
	}
	version := max(committed, least)
	if version == 0 {
		return chosen, -1, nil
	}
	source = -1
	for rank := range has {
		switch v := has[rank].of(version); {
		case v == nil:
		case source < 0:
			source, chosen = rank, *v
		case *v != chosen:
			return chosen, -1, fault.Errorf(fault.ErrMismatch, "%s and %s have different models of "+
				"version %d", c.Members.Names(source), c.Members.Names(rank), version).Blaming(rank)
		}
	}
	whole := func(h holding) bool { return h.whole(version) }
	if source >= 0 && !slices.ContainsFunc(has, whole) {
		return chosen, -1, fault.Errorf(fault.ErrMismatch, "the global model of version %d "+
			"has changed since it was made, on all ranks that have it", version).Blaming(source)
	}
	if source < 0 || chosen.Global < 0 || chosen.Global > checkpointMost || chosen.Places < 0 ||
		chosen.Places > bootstrap.MaxSize {
		return chosen, -1, c.Members.Errorf(fault.ErrInternal, "version %d cannot be of %d bytes and %d "+
			"ranks", version, chosen.Global, chosen.Places)
	}
	return chosen, source, nil
}

// takePlaces gives ranks that have no place in a version those that are free, and with them the
// local models; of places that nobody takes the models become orphans.
func (c *Comm) takePlaces(ctx context.Context, e *epoch, mine *checkpoint, places []place,
	has []holding) error {
	ids, current := make([]uint64, len(has)), make([]bool, len(has))
	for rank := range has {
		ids[rank], current[rank] = has[rank].id, has[rank].of(int64(mine.version)) != nil
	}
	owners := ownersOf(places, ids, current)
	mine.dropChanged(e, places, owners, ids)
	holders, err := c.gatherHolders(ctx, mine, places)
	if err != nil {
		return err
	}
	if err := c.passOn(ctx, e, mine, places, owners, holders); err != nil {
		return err
	}
	adopters := adoptersOf(places, owners, holders)
	mine.orphans = nil
	for at, p := range places {
		orphan := Orphan{Rank: at, Size: p.Local}
		switch {
		case p.Local > 0 && len(holders[at]) == 0:
			e.log(logs.Init).Warn("a local model is lost: its rank and all that kept copies have ended, "+
				"or have it changed", "rank", at, "version", mine.version)
			mine.orphans = append(mine.orphans, orphan)
		case adopters[at] == e.Rank:
			orphan.Model = mine.kept[at]
			mine.orphans = append(mine.orphans, orphan)
		}
		if owners[at] != noRank {
			places[at].Owner = ids[owners[at]]
		}
	}
	mine.places = places
	return nil
}

// gatherHolders tells, for each place, which ranks have its local model.
func (c *Comm) gatherHolders(ctx context.Context, mine *checkpoint,
	places []place) (holders [][]int, err error) {
	words := (len(places) + 63) / 64
	bits := make([]int64, words)
	for at := range places {
		if mine.localOf(at, places[at], c.models.id) != nil {
			bits[at/64] |= 1 << (at % 64)
		}
	}
	all, err := c.gather(ctx, ofRecovery, false, bits...)
	holders = make([][]int, len(places))
	for i, word := range all {
		for ; word != 0; word &= word - 1 {
			at := i%words*64 + mathbits.TrailingZeros64(uint64(word))
			holders[at] = append(holders[at], i/words)
		}
	}
	return holders, err
}

// dropChanged drops local models that have changed since the version was made: of those that this
// rank keeps only such as their owners are not there to have.
func (p *checkpoint) dropChanged(e *epoch, places []place, owners []int, ids []uint64) {
	self := ids[e.Rank]
	for at, of := range places {
		has := owners[at] != noRank && ids[owners[at]] == of.Owner
		model := p.localOf(at, of, self)
		if model == nil || has && of.Owner != self || digestOf(model) == of.Digest {
			continue
		}
		e.log(logs.Init).Warn("a local model has changed in the memory of this rank, and is not used",
			"rank", at, "version", p.version)
		if of.Owner == self {
			p.local = nil
		} else {
			delete(p.kept, at)
		}
	}
}

// localOf is the local model of a place, nil where it is not here.
func (p *checkpoint) localOf(at int, of place, self uint64) []byte {
	model := p.kept[at]
	if of.Owner == self {
		model = p.local
	}
	if uint64(len(model)) != of.Local {
		return nil
	}
	return model
}

// passOn passes local models on to the ranks that take their places, a stripe from each that has
// one.
func (c *Comm) passOn(ctx context.Context, e *epoch, mine *checkpoint, places []place, owners []int,
	holders [][]int) error {
	in, out := make([][]byte, e.Size()), make([][]byte, e.Size())
	from := make([][]int, e.Size())
	passes, got := false, true
	var local []byte
	for at, taker := range owners {
		size := places[at].Local
		if taker == noRank || size == 0 || len(holders[at]) == 0 ||
			slices.Contains(holders[at], taker) {
			continue
		}
		passes, from[taker] = true, holders[at]
		switch {
		case taker == e.Rank:
			local = make([]byte, size)
			e.addStripes(in, out, local, holders[at], taker)
		case slices.Contains(holders[at], e.Rank):
			e.addStripes(in, out, mine.localOf(at, places[at], c.models.id), holders[at], taker)
		}
	}
	if !passes {
		return nil
	}
	if err := c.exchange(ctx, in, out); err != nil {
		return err
	}
	if local != nil {
		got, mine.local = digestOf(local) == places[slices.Index(owners, e.Rank)].Digest, local
	}
	return c.unchanged(ctx, e, got, "a local model", mine.version, from)
}
