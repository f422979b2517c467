package checkpoint

import (
	"context"
	"encoding/binary"
	"slices"

	"github.com/goccl/goccl/core/fault"
)

// Load returns the newest version that all members have which have been in one, and this rank's
// models of it; version 0 where there is none. What goes to whom, and what is an error, stands with
// the core's Comm.LoadCheckPoint. The models that are returned are the caller's.
func (s *Store) Load(ctx context.Context, m Members) (*Loaded, error) {
	if err := s.load(ctx, m); err != nil {
		return nil, err
	}
	v := s.committed
	loaded := &Loaded{Version: v.number, Global: slices.Clone(v.global), Local: slices.Clone(v.local),
		Orphans: slices.Clone(v.orphans)}
	for i := range loaded.Orphans {
		o := &loaded.Orphans[i]
		o.Model = slices.Clone(o.Model)
	}
	return loaded, nil
}

func (s *Store) load(ctx context.Context, m Members) error {
	has, err := s.gatherHoldings(ctx, m)
	if err != nil {
		return err
	}
	chosen, source, err := choose(m.Group, has)
	if err != nil {
		return err
	}
	if source == noRank {
		s.commit(&version{}, m.Epoch)
		return nil
	}
	shards := make([]shard, chosen.Shards)
	mine := s.of(uint64(chosen.Number))
	if mine != nil {
		shards = slices.Clone(mine.shards)
	} else {
		mine = &version{number: uint64(chosen.Number), digest: chosen.Digest,
			table: chosen.Table, global: make([]byte, chosen.Global)}
	}
	table, _ := binary.Append(nil, binary.LittleEndian, shards) // of a fixed size
	if err := m.Broadcast(ctx, source, table); err != nil {
		return err
	}
	_, _ = binary.Decode(table, binary.LittleEndian, shards) // as above
	if err := unchanged(ctx, m, tableOf(shards) == mine.table, "the table of local models",
		mine.number, slices.Repeat([][]int{{source}}, len(has))); err != nil {
		return err
	}
	if slices.ContainsFunc(shards, func(s shard) bool { return s.Local > MaxBytes }) {
		return m.Group.Errorf(fault.ErrInternal, "version %d cannot have a local model of more than "+
			"%d bytes", chosen.Number, MaxBytes)
	}
	if err := passGlobal(ctx, m, mine, has); err != nil {
		return err
	}
	if err := s.takeShards(ctx, m, mine, shards, has); err != nil {
		return err
	}
	s.commit(mine, m.Epoch)
	return nil
}

// of is what is held of a version, nil if nothing is.
func (s *Store) of(number uint64) *version {
	switch {
	case s.committed.number == number:
		return s.committed
	case s.staged != nil && s.staged.number == number:
		return s.staged
	}
	return nil
}

func (s *Store) gatherHoldings(ctx context.Context, m Members) (all []holding, err error) {
	mine := []int64{int64(s.id), number(s.belongs)}
	for _, v := range []*version{s.committed, s.staged} {
		if v == nil {
			v = &version{}
		}
		changed := v.number > 0 && digestOf(v.global) != v.digest
		mine = append(mine, int64(v.number), v.digest, int64(len(v.global)), v.table,
			int64(len(v.shards)), number(changed))
	}
	numbers, err := m.Gather(ctx, mine...)
	for of := range slices.Chunk(numbers, len(mine)) {
		all = append(all, holding{uint64(of[0]), of[1] != 0,
			[2]heldVersion{{of[2], of[3], of[4], of[5], of[6]}, {of[8], of[9], of[10], of[11], of[12]}},
			[2]bool{of[7] != 0, of[13] != 0}})
	}
	return all, err
}

// unchanged has all ranks know whether what some have got is what was made. `from` is, by rank, who
// has passed it on to that one, nil for one that has got nothing.
func unchanged(ctx context.Context, m Members, mine bool, what string, version uint64,
	from [][]int) error {
	all, err := m.Gather(ctx, number(mine))
	if err != nil {
		return err
	}
	for rank, sources := range from {
		if all[rank] == 0 && sources != nil {
			return fault.Errorf(fault.ErrMismatch, "%s of version %d has come from %s to %s "+
				"otherwise than it was made", what, version, m.Group.Names(sources...),
				m.Group.Names(rank)).Blaming(sources...)
		}
	}
	return nil
}

// passGlobal passes the global model on to the ranks that lack it: a stripe from each that has it,
// or from one to all where those that lack it are more.
func passGlobal(ctx context.Context, m Members, mine *version, has []holding) error {
	holders, takers := passing(has, int64(mine.number))
	if len(takers) == 0 || len(mine.global) == 0 {
		return nil
	}
	from := make([][]int, len(has))
	for _, taker := range takers {
		from[taker] = holders
	}
	var err error
	if len(takers) > len(holders) {
		err = m.Broadcast(ctx, holders[0], mine.global)
	} else {
		in, out := make([][]byte, len(has)), make([][]byte, len(has))
		for _, taker := range takers {
			addStripes(m.Rank, in, out, mine.global, holders, taker)
		}
		err = m.Exchange(ctx, in, out)
	}
	if err != nil {
		return err
	}
	got := from[m.Rank] == nil || digestOf(mine.global) == mine.digest
	return unchanged(ctx, m, got, "the global model", mine.number, from)
}

// addStripes adds to a rank's exchange that `taker` gets some bytes: a stripe from each that has
// them. To the taker itself data is the memory that they come to.
func addStripes(self int, in, out [][]byte, data []byte, holders []int, taker int) {
	for i, holder := range holders {
		from, to := stripe(uint64(len(data)), i, len(holders))
		if taker == self {
			out[holder] = data[from:to]
		}
		if holder == self {
			in[taker] = data[from:to]
		}
	}
}

// takeShards gives ranks that have no shard in a version those that are free, and with them the
// local models. Models of shards that nobody takes become orphans.
func (s *Store) takeShards(ctx context.Context, m Members, mine *version, shards []shard,
	has []holding) error {
	ids, current := make([]uint64, len(has)), make([]bool, len(has))
	for rank := range has {
		ids[rank], current[rank] = has[rank].id, has[rank].of(int64(mine.number)) != nil
	}
	owners := ownersOf(shards, ids, current)
	mine.dropChanged(m, shards, owners, ids)
	holders, err := s.gatherHolders(ctx, m, mine, shards)
	if err != nil {
		return err
	}
	if err := s.passOn(ctx, m, mine, shards, movesOf(shards, owners, holders)); err != nil {
		return err
	}
	heirs := heirsOf(shards, owners, holders)
	mine.orphans = nil
	for at, of := range shards {
		orphan := Orphan{Rank: at, Size: of.Local}
		switch {
		case of.Local > 0 && len(holders[at]) == 0:
			m.Logger.Warn("a local model is lost: its rank and all that kept copies have ended, "+
				"or have it changed", "rank", at, "version", mine.number)
			mine.orphans = append(mine.orphans, orphan)
		case heirs[at] == m.Rank:
			orphan.Model = mine.kept[at]
			mine.orphans = append(mine.orphans, orphan)
		}
		if owners[at] != noRank {
			shards[at].Owner = ids[owners[at]]
		}
	}
	mine.shards = shards
	return nil
}

// gatherHolders returns, for each shard, which ranks have it.
func (s *Store) gatherHolders(ctx context.Context, m Members, mine *version, shards []shard) (
	[][]int, error) {
	masks, err := m.Gather(ctx, mask(len(shards), func(at int) bool {
		return mine.localOf(at, shards[at], s.id) != nil
	})...)
	return holdersOf(len(shards), masks), err
}

// dropChanged drops local models that have changed since the version was made. Of those that this
// rank keeps it looks only at such as their owners are not there to have.
func (v *version) dropChanged(m Members, shards []shard, owners []int, ids []uint64) {
	self := ids[m.Rank]
	for at, of := range shards {
		has := owners[at] != noRank && ids[owners[at]] == of.Owner
		model := v.localOf(at, of, self)
		if model == nil || has && of.Owner != self || digestOf(model) == of.Digest {
			continue
		}
		m.Logger.Warn("a local model has changed in the memory of this rank, and is not used",
			"rank", at, "version", v.number)
		if of.Owner == self {
			v.local = nil
		} else {
			delete(v.kept, at)
		}
	}
}

// localOf is the local model of a shard, nil where it is not here.
func (v *version) localOf(at int, of shard, self uint64) []byte {
	model := v.kept[at]
	if of.Owner == self {
		model = v.local
	}
	if uint64(len(model)) != of.Local {
		return nil
	}
	return model
}

// passOn moves local models to the ranks that own them now, a stripe from each that has one.
func (s *Store) passOn(ctx context.Context, m Members, mine *version, shards []shard,
	moves []move) error {
	if len(moves) == 0 {
		return nil
	}
	in, out := make([][]byte, len(m.Hosts)), make([][]byte, len(m.Hosts))
	from := make([][]int, len(m.Hosts))
	got := true
	var local []byte
	var digest int64
	for _, v := range moves {
		from[v.to] = v.holders
		switch {
		case v.to == m.Rank:
			local, digest = make([]byte, shards[v.shard].Local), shards[v.shard].Digest
			addStripes(m.Rank, in, out, local, v.holders, v.to)
		case slices.Contains(v.holders, m.Rank):
			addStripes(m.Rank, in, out, mine.localOf(v.shard, shards[v.shard], s.id), v.holders, v.to)
		}
	}
	if err := m.Exchange(ctx, in, out); err != nil {
		return err
	}
	if local != nil {
		got, mine.local = digestOf(local) == digest, local
	}
	return unchanged(ctx, m, got, "a local model", mine.number, from)
}
