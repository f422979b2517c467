package core

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	mathbits "math/bits"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
)

// A checkpoint is made in two phases. First each rank stages the version: its models, and the local
// models that it keeps for others. Then a barrier follows, after which it counts. So a rank that is
// through knows that all have staged it, and the others have it, staged, whatever becomes of them.
// What is staged on all that are left is loaded: a rank that has ended may have been through.
//
// Models have digests from when they are made. By them a rank checks what it holds, before it
// returns it or passes it on, and what it gets. So what has changed in memory, or on its way, is not
// loaded, and a rank that passes on something else is found out.

// checkpointMost is how many bytes of models a rank holds at most: its own and those that it keeps
// for others, in two versions.
const checkpointMost = 1 << 30

// models are what a rank holds of checkpoints.
type models struct {
	id        uint64        // names the rank, whatever its number
	belongs   bool          // it has been in a version; that before the first is one
	committed *checkpoint   // which counts
	staged    *checkpoint   // nil, or the next one, which is whole here
	epoch     uint32        // in which committed was made or loaded
	version   atomic.Uint64 // of committed; under no lock
}

// checkpoint is a version of the models. Version 0 has none.
type checkpoint struct {
	version uint64
	digest  int64 // of the global model
	table   int64 // the digest of what places say of local models
	global  []byte
	local   []byte
	places  []place        // by the ranks of the epoch in which it was made
	kept    map[int][]byte // local models of others, by place
	orphans []Orphan       // since it was loaded
}

// place is what was a rank when a version was made. It may be another's now.
type place struct {
	Owner  uint64 // models.id of the rank
	Local  uint64 // bytes of the local model
	Digest int64  // of the local model
}

func newModels() models {
	var id [8]byte
	rand.Read(id[:]) // of the kernel: processes that are forked have the other generators in common
	return models{id: binary.LittleEndian.Uint64(id[:]), committed: &checkpoint{}}
}

// Loaded is a version of the models, as a rank gets it. Version 0 has none.
type Loaded struct {
	Version       uint64
	Global, Local []byte
	Orphans       []Orphan
}

// Orphan is a local model of a rank that has ended.
type Orphan struct {
	Rank  int    // which it was when the version was made
	Size  uint64 // bytes
	Model []byte // nil: it is lost
}

// CheckPoint makes the next version of the models, in memory: the global one, which is the same on
// all ranks, and a local one for each rank, of which `replicas` other ranks keep copies: those of
// other hosts first, and no two of a host while others have none. Where there are fewer others all
// keep one. So a local model is lost only where its rank and all that keep it end before the next
// version. All ranks must call it, with the same number of replicas. Once it has returned on any
// rank the version is not lost as long as a member lives. After an error LoadCheckPoint tells
// whether it counts. Models are copied.
//
// ErrMismatch tells, on all ranks, that global models, replicas or versions differ, or that the
// members have changed and LoadCheckPoint comes first: what only the ended had would be dropped
// unseen. ErrInvalidArgument tells that replicas are negative, that the models of some rank are too
// large, 1 GiB for its own and all copies that it keeps for others, in two versions, or that a call
// has failed after it was whole on some rank: LoadCheckPoint comes first. Nothing has changed then.
func (c *Comm) CheckPoint(ctx context.Context, global, local []byte, replicas int) error {
	ctx, cancel := c.limit(ctx)
	defer cancel()
	e := c.holdEpoch()
	defer c.changing.Unlock()
	if err := c.checkPoint(ctx, e, global, local, replicas); err != nil {
		return fault.From(err, fault.ErrSystem, "checkpoint").In(&e.members).During("checkpoint", 0)
	}
	return nil
}

// VersionNumber is the version that CheckPoint or LoadCheckPoint has returned with last, 0 before
// the first.
func (c *Comm) VersionNumber() uint64 { return c.models.version.Load() }

// holdEpoch locks c.changing when the members have recovered by themselves, if they do.
func (c *Comm) holdEpoch() *epoch {
	for {
		c.changing.Lock()
		c.mu.Lock()
		recovering := c.recovering
		c.mu.Unlock()
		if recovering == nil {
			return c.present.Load()
		}
		c.changing.Unlock()
		<-recovering.done
	}
}

func (c *Comm) checkPoint(ctx context.Context, e *epoch, global, local []byte,
	replicas int) error {
	m := &c.models
	next := &checkpoint{version: m.committed.version + 1, digest: digestOf(global)}
	plans, err := c.gatherPlans(ctx, checkpointPlan{ID: int64(m.id), Version: int64(next.version),
		Staged: m.staged != nil, Behind: next.version > 1 && m.epoch != e.number, Digest: next.digest,
		Global: int64(len(global)), Local: int64(len(local)), LocalDigest: digestOf(local),
		Replicas: int64(replicas)})
	if err != nil {
		return err
	}
	keepers := keepersOf(e.hostsOf(), replicas)
	if err := e.checkPlans(plans, keepers); err != nil {
		return err
	}
	next.global, next.local, next.kept = slices.Clone(global), slices.Clone(local), map[int][]byte{}
	anyLocal := false
	in, out := make([][]byte, e.size), make([][]byte, e.size)
	for rank, p := range plans {
		next.places = append(next.places, place{Owner: uint64(p.ID), Local: uint64(p.Local),
			Digest: p.LocalDigest})
		anyLocal = anyLocal || p.Local > 0
		if slices.Contains(keepers[rank], e.rank) {
			out[rank] = make([]byte, p.Local)
			next.kept[rank] = out[rank]
		}
	}
	next.table = tableOf(next.places)
	for _, k := range keepers[e.rank] {
		in[k] = next.local
	}
	// A rank that is through has heard from all others that they have agreed to the version.
	if anyLocal {
		err = c.exchange(ctx, in, out)
	} else {
		err = c.run(ctx, ofRecovery, call.Operation{Collective: plan.Barrier})
	}
	if err != nil {
		return err
	}
	m.staged, m.belongs = next, true
	if err := c.run(ctx, ofRecovery, call.Operation{Collective: plan.Barrier}); err != nil {
		return err
	}
	m.commit(next, e.number)
	return nil
}

// commit has a version count.
func (m *models) commit(p *checkpoint, epoch uint32) {
	m.committed, m.staged, m.belongs, m.epoch = p, nil, true, epoch
	m.version.Store(p.version)
}

// checkpointPlan is what a rank tells before a version is made.
type checkpointPlan struct {
	ID, Version   int64
	Staged        bool // it has a version whole already that may count
	Behind        bool // it has not loaded since the members have changed
	Digest        int64
	Global, Local int64 // bytes
	LocalDigest   int64
	Replicas      int64
}

func (c *Comm) gatherPlans(ctx context.Context, p checkpointPlan) (all []checkpointPlan,
	err error) {
	numbers, err := c.gather(ctx, ofRecovery, false, p.ID, p.Version, number(p.Staged),
		number(p.Behind), p.Digest, p.Global, p.Local, p.LocalDigest, p.Replicas)
	for of := range slices.Chunk(numbers, 9) {
		all = append(all, checkpointPlan{of[0], of[1], of[2] != 0, of[3] != 0, of[4], of[5], of[6],
			of[7], of[8]})
	}
	return all, err
}

// digestOf tells models apart from others.
func digestOf(model []byte) int64 {
	sum := sha256.Sum256(model)
	return int64(binary.LittleEndian.Uint64(sum[:]))
}

// tableOf is a digest of what places say of local models, whosever they are now.
func tableOf(places []place) int64 {
	var said []byte
	for _, p := range places {
		said = binary.LittleEndian.AppendUint64(said, p.Local)
		said = binary.LittleEndian.AppendUint64(said, uint64(p.Digest))
	}
	return digestOf(said)
}

// number is 1 for what is true.
func number(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// checkPlans checks what ranks are about to make: alike on all of them.
func (c *epoch) checkPlans(plans []checkpointPlan, keepers [][]int) error {
	held := make([]int64, c.size)
	for rank, p := range plans {
		first, names := &plans[0], c.members.Names
		switch {
		case p.Staged:
			return fault.Errorf(fault.ErrInvalidArgument, "the checkpoint before has failed, and %s "+
				"has all of it: call LoadCheckPoint, which tells whether it counts", names(rank)).
				Blaming(rank)
		case p.Version != first.Version:
			return fault.Errorf(fault.ErrMismatch, "the next version is %d on %s, but %d on %s: "+
				"all call LoadCheckPoint after the members have changed", p.Version, names(rank),
				first.Version, names(0)).Blaming(rank)
		case p.Behind:
			return fault.Errorf(fault.ErrMismatch, "the members have changed since %s has got version "+
				"%d: all call LoadCheckPoint first", names(rank), p.Version-1).Blaming(rank)
		case p.Global != first.Global || p.Digest != first.Digest:
			return fault.Errorf(fault.ErrMismatch, "the global models differ: of %d bytes, digest "+
				"%016x, on %s, and of %d bytes, digest %016x, on %s", p.Global, uint64(p.Digest),
				names(rank), first.Global, uint64(first.Digest), names(0)).Blaming(rank)
		case p.Replicas < 0:
			return fault.Errorf(fault.ErrInvalidArgument, "replicas are %d on %s, allowed are 0 and "+
				"more", p.Replicas, names(rank)).Blaming(rank)
		case p.Replicas != first.Replicas:
			return fault.Errorf(fault.ErrMismatch, "replicas are %d on %s, and %d on %s: they are to "+
				"be the same", p.Replicas, names(rank), first.Replicas, names(0)).Blaming(rank)
		}
		if p.Global < 0 || p.Local < 0 || p.Global > checkpointMost || p.Local > checkpointMost {
			return c.tooLarge(rank, max(p.Global, p.Local))
		}
		held[rank] += p.Global + p.Local
		for _, k := range keepers[rank] {
			held[k] += p.Local
		}
	}
	for rank, n := range held {
		if 2*n > checkpointMost {
			return c.tooLarge(rank, 2*n)
		}
	}
	return nil
}

func (c *epoch) tooLarge(rank int, bytes int64) error {
	return fault.Errorf(fault.ErrInvalidArgument, "the models take %d bytes on %s, in two "+
		"versions and with the copies that it keeps for others; allowed are %d", bytes,
		c.members.Names(rank), checkpointMost).Blaming(rank)
}

// hostsOf are the hosts of the ranks.
func (c *roster) hostsOf() (hosts []string) {
	for i := range c.addresses {
		hosts = append(hosts, c.addresses[i].Host)
	}
	return hosts
}

// exchange sends bytes to ranks, and receives from ranks.
func (c *Comm) exchange(ctx context.Context, in, out [][]byte) error {
	var pin pinner
	defer pin.Unpin()
	op := call.Operation{Collective: plan.AllToAll, DType: reduce.Uint8}
	op.In, op.InCounts = pin.blocks(in)
	op.Out, op.OutCounts = pin.blocks(out)
	return c.run(ctx, ofRecovery, op)
}

// blocks pins memory of bytes.
func (p *pinner) blocks(all [][]byte) (at []unsafe.Pointer, counts []uint64) {
	for _, b := range all {
		var block unsafe.Pointer
		if len(b) > 0 {
			first := unsafe.SliceData(b)
			p.Pin(first)
			block = unsafe.Pointer(first)
		}
		at, counts = append(at, block), append(counts, uint64(len(b)))
	}
	return at, counts
}

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
		return nil, fault.From(err, fault.ErrSystem, "load_checkpoint").In(&e.members).
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
		mine.version, slices.Repeat([][]int{{source}}, e.size)); err != nil {
		return err
	}
	if slices.ContainsFunc(places, func(p place) bool { return p.Local > checkpointMost }) {
		return e.members.Errorf(fault.ErrInternal, "version %d cannot have a local model of more than "+
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
				"otherwise than it was made", what, version, e.members.Names(sources...),
				e.members.Names(rank)).Blaming(sources...)
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
	from := make([][]int, e.size)
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
		in, out := make([][]byte, e.size), make([][]byte, e.size)
		for _, taker := range takers {
			e.addStripes(in, out, mine.global, holders, taker)
		}
		err = c.exchange(ctx, in, out)
	}
	if err != nil {
		return err
	}
	got := from[e.rank] == nil || digestOf(mine.global) == mine.digest
	return c.unchanged(ctx, e, got, "the global model", mine.version, from)
}

// addStripes adds to an exchange that a rank gets some bytes: a stripe from each that has them. To
// the rank itself data is the memory that they come to.
func (c *epoch) addStripes(in, out [][]byte, data []byte, holders []int, taker int) {
	for i, holder := range holders {
		from, to := stripe(uint64(len(data)), i, len(holders))
		if taker == c.rank {
			out[holder] = data[from:to]
		}
		if holder == c.rank {
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
				"version %d", c.members.Names(source), c.members.Names(rank), version).Blaming(rank)
		}
	}
	whole := func(h holding) bool { return h.whole(version) }
	if source >= 0 && !slices.ContainsFunc(has, whole) {
		return chosen, -1, fault.Errorf(fault.ErrMismatch, "the global model of version %d "+
			"has changed since it was made, on all ranks that have it", version).Blaming(source)
	}
	if source < 0 || chosen.Global < 0 || chosen.Global > checkpointMost || chosen.Places < 0 ||
		chosen.Places > bootstrap.MaxSize {
		return chosen, -1, c.members.Errorf(fault.ErrInternal, "version %d cannot be of %d bytes and %d "+
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
		case adopters[at] == e.rank:
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
	self := ids[e.rank]
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
	in, out := make([][]byte, e.size), make([][]byte, e.size)
	from := make([][]int, e.size)
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
		case taker == e.rank:
			local = make([]byte, size)
			e.addStripes(in, out, local, holders[at], taker)
		case slices.Contains(holders[at], e.rank):
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
		got, mine.local = digestOf(local) == places[slices.Index(owners, e.rank)].Digest, local
	}
	return c.unchanged(ctx, e, got, "a local model", mine.version, from)
}
