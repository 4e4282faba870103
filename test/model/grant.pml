/*
 * grant.pml
 *		Leases of one resource: looks, the resource lock, and what is written, in
 *		the words of src/README.md, src/store, src/grant and src/hold. README.md
 *		has the claims, the bounds, and what is left out.
 *
 * Three sessions make calls, each in one transaction with up to two levels of
 * savepoints. All steps of session 0 are steps here: each version that it
 * visits, each transaction whose end it asks for, each row that it writes. A
 * call of the others takes the lock, looks and decides in one step: nobody else
 * can write meanwhile, and how it goes on if a transaction ends between its look
 * and its write is seen at session 0, whose part each kind of call has in turn.
 * Their writes are steps, since a look without the lock can come between.
 *
 * Set by run:
 *	WANTS0..2		what the sessions acquire
 *	OWNER0..2, END0..2	the row of each lease slot in the beginning: owner (1 + its
 *				session, 0: tombstone, NO_ROW), and its end
 *	CALLS0, CALLS	number of calls of session 0, and of each other session
 *	CAN0, CAN		which calls they can make
 *	SAME			1: session 1 calls for the owner of session 0
 *	LEVELS			levels of savepoints
 *	PLACE_LOW		put new versions at low positions, so that a scan meets them last
 *	B_...			breaks the protocol in one place
 */
#define EXCLUSIVE	1
#define SHARED		2
#define PERMIT		3			/* one of two */

#define ACQUIRE		1
#define RELEASE		2
#define RENEW		4
#define ASSERT		8

#define NO_ROW		9
#define TOMBSTONE	0

#ifndef WANTS0
#define WANTS0	EXCLUSIVE
#endif
#ifndef WANTS1
#define WANTS1	EXCLUSIVE
#endif
#ifndef WANTS2
#define WANTS2	EXCLUSIVE
#endif
#ifndef OWNER0
#define OWNER0	NO_ROW
#endif
#ifndef END0
#define END0	0
#endif
#ifndef OWNER1
#define OWNER1	NO_ROW
#endif
#ifndef END1
#define END1	0
#endif
#ifndef OWNER2
#define OWNER2	NO_ROW
#endif
#ifndef END2
#define END2	0
#endif
#ifndef CALLS0
#define CALLS0	1
#endif
#ifndef CALLS
#define CALLS	2
#endif
#ifndef CAN0
#define CAN0	15
#endif
#ifndef CAN
#define CAN		15
#endif
#ifndef LEVELS
#define LEVELS	2
#endif
#ifndef SAME
#define SAME	0
#endif
#define OWNER_OF(s)	((s) == 1 && SAME -> 1 : (s) + 1)
#define WANTS(s)	((s) == 0 -> WANTS0 : ((s) == 1 -> WANTS1 : WANTS2))

#define SLOTS		3
#define MAX_TIME	2
#define TTL			1			/* of a grant; a renewal lasts one longer */

byte now;
byte locked_by;					/* the resource lock: 1 + session */

/* Transactions: each session has one, and one for each level of savepoints. */
#define XID(s, level)	(3 * (s) + (level) + 1)
#define SESSION_OF(x)	(((x) - 1) / 3)
#define NOT_BEGUN	0
#define RUNNING		1
#define COMMITTED	2
#define ROLLED_BACK	3
byte status[10];
byte level[3];
bit over[3];					/* the session's transaction has ended */

/* Versions of rows, by their positions in the table. */
#define POSITIONS	8
byte slot_of[POSITIONS];		/* 1 + lease slot; 0: there is none */
byte owner[POSITIONS], ends[POSITIONS], token[POSITIONS];
byte inserted_by[POSITIONS], replaced_by[POSITIONS];
short lockers[POSITIONS];		/* transactions that have it FOR KEY SHARE */

/* What claims need: the assertions of each session, 1 + level of the first. */
byte asserted[3];

/* The look of session 0, which goes on for several steps. */
bit looking;
bit any_ended;					/* a transaction has ended since it began */
byte wants;						/* what session 0 is trying to acquire; 0: nothing */
bit was_right;					/* at one moment since the lock, or without it since the look began,
								 * the request had to be refused */
bit was_held;					/* and because of a lease that was not open */
bit seen[POSITIONS];
byte n_ins[POSITIONS], n_rep[POSITIONS], n_lock[POSITIONS];	/* as noted in LeaseRow */

/* Scratch variables of one step. */
hidden byte i, j, k, m, x;
hidden byte rows[POSITIONS], ins[POSITIONS], rep[POSITIONS], lck[POSITIONS];
hidden byte refused, by_lease, by_open, own, target, seat, taken, n_expired, conflict, claimed, holds, top_token;
hidden byte e_slot, e_owner, e_end, e_token, h0, h1, h2;
hidden byte claim_ONE, claim_REFUSAL, claim_LATE, claim_CLOCK, claim_CURRENT, claim_NOWAIT;

#define IS_MINE(x, me)		((x) != 0 && SESSION_OF(x) == (me) && status[x] == RUNNING)
#define IS_OTHERS(x, me)	((x) != 0 && SESSION_OF(x) != (me) && status[x] == RUNNING)
#define OWN_LOCKS(me)		(7 << (3 * (me) + 1))

/* Is the version visible to a dirty snapshot? */
#ifdef B_ONLY_COMMITTED_ROWS
#define IS_SEEN(p, me)	(IS_THERE(p, me) && !IS_OTHERS(inserted_by[p], me))
#else
#define IS_SEEN(p, me)	IS_THERE(p, me)
#endif
#define IS_THERE(p, me) \
	(slot_of[p] != 0 && \
	 (inserted_by[p] == 0 || status[inserted_by[p]] != ROLLED_BACK) && \
	 (replaced_by[p] == 0 || status[replaced_by[p]] == ROLLED_BACK || IS_OTHERS(replaced_by[p], me)))

/* ---------------------------------------------------------------- looks */

/* read_lockers(): note who replaces the version, and who locks it. */
inline note_header(p, me, to_rep, to_lock)
{
	to_rep = 0; to_lock = 0;
	if
	:: replaced_by[p] != 0 && SESSION_OF(replaced_by[p]) != me &&
#ifdef B_REPLACED_IS_CURRENT
		status[replaced_by[p]] == RUNNING ->
#else
		status[replaced_by[p]] != ROLLED_BACK ->
#endif
		to_rep = replaced_by[p]
	:: else
	fi;
	x = 1;
	do
	:: x < 10 && (lockers[p] & (1 << x)) && SESSION_OF(x) != me -> to_lock = x; x++
	:: x < 10 && !((lockers[p] & (1 << x)) && SESSION_OF(x) != me) -> x++
	:: else -> break
	od
}

/* A look in one step. */
inline look_at_once(me)
{
	i = 0;
	do
	:: i < POSITIONS ->
		rows[i] = IS_THERE(i, me); ins[i] = 0; rep[i] = 0; lck[i] = 0;
		if
		:: rows[i] ->
			ins[i] = (IS_OTHERS(inserted_by[i], me) -> inserted_by[i] : 0);
			note_header(i, me, rep[i], lck[i])
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0
}

/* The rows that the look of session 0 has noted. */
inline use_look()
{
	i = 0;
	do
	:: i < POSITIONS ->
		rows[i] = seen[i]; ins[i] = n_ins[i]; rep[i] = n_rep[i]; lck[i] = n_lock[i];
		i++
	:: else -> break
	od;
	i = 0
}

/* ---------------------------------------------------------------- rules */

#define NOBODY		99

#define IS_OPEN(p)	(ins[p] != 0 || rep[p] != 0)
/* obstacle_to_write() */
#ifndef B_ASSERTED_IS_FREE
#define BLOCKER(p)	(ins[p] != 0 -> ins[p] : (rep[p] != 0 -> rep[p] : lck[p]))
#else
#define BLOCKER(p)	(ins[p] != 0 -> ins[p] : rep[p])
#endif
/* obstacle_in().exists */
#define IN_THE_WAY(p, t) \
	(!(ends[p] <= (t) && owner[p] == TOMBSTONE) && (ends[p] > (t) || BLOCKER(p) != 0))

/* decide(), at the time t. seat is the lease slot, target its row. */
inline decide(me, want, t)
{
	by_lease = 0; by_open = 0; refused = 0; own = NOBODY; target = NOBODY; seat = 0; taken = 0; n_expired = 0; top_token = 0;
	k = NOBODY;					/* an expired lease of another owner */
	j = NOBODY;					/* a tombstone */
	x = 0;						/* lease slot that was counted last */
	h0 = SLOTS;
	do							/* by slots, from the highest one */
	:: h0 > 0 ->
		i = 0;
		do
		:: i < POSITIONS && rows[i] && slot_of[i] == h0 ->
			top_token = (token[i] > top_token -> token[i] : top_token);
			by_lease = by_lease || (ends[i] > t && !IS_OPEN(i));
			by_open = by_open || IS_OPEN(i) || BLOCKER(i) != 0;
			if
			:: owner[i] == OWNER_OF(me) && (ins[i] != 0 || ends[i] > t) -> own = i	/* may_be_own() */
			:: else
			fi;
			if
			:: want == EXCLUSIVE ->
				if
#ifdef B_OPEN_IS_FREE
				:: ends[i] > t && !IS_OPEN(i) -> refused = 1
#else
				:: IN_THE_WAY(i, t) || (h0 == 1 && BLOCKER(i) != 0) -> refused = 1
#endif
				:: else
				fi;
				target = (h0 == 1 -> i : target)
			:: want != EXCLUSIVE && h0 == 1 ->
				if
				:: IN_THE_WAY(i, t) -> refused = 1
				:: else
				fi
			:: want != EXCLUSIVE && h0 != 1 && IN_THE_WAY(i, t) ->
				taken = (x != h0 -> taken + 1 : taken);
				x = h0
			:: want != EXCLUSIVE && h0 != 1 && !IN_THE_WAY(i, t) && BLOCKER(i) == 0 ->
				if				/* offer_row() */
				:: owner[i] == OWNER_OF(me) -> target = i
				:: owner[i] == TOMBSTONE -> j = i
				:: owner[i] != OWNER_OF(me) && owner[i] != TOMBSTONE -> k = i; n_expired++
				fi
			:: else
			fi;
			i++
		:: i < POSITIONS && !(rows[i] && slot_of[i] == h0) -> i++
		:: else -> break
		od;
		h0--
	:: else -> break
	od;
	if
	:: want != EXCLUSIVE ->		/* grant_seat() */
		refused = refused || own != NOBODY || (want == PERMIT && taken >= 2);
		target = (target != NOBODY -> target :
				  (j != NOBODY && !(want == PERMIT && k != NOBODY && taken + n_expired >= 2) -> j : k));
		seat = 1;
		i = 0;
		do						/* unused_slot() */
		:: i < POSITIONS && rows[i] && slot_of[i] == seat + 1 -> seat++; i = 0
		:: i < POSITIONS && !(rows[i] && slot_of[i] == seat + 1) -> i++
		:: else -> break
		od;
		seat = (target != NOBODY -> slot_of[target] - 1 : seat);
		refused = refused || seat >= SLOTS
	:: else
	fi;
	i = 0; j = 0; k = 0; x = 0; h0 = 0
}

/* takes_over() */
#define IS_TAKEN_OVER(p, want) \
	(rows[p] && owner[p] != TOMBSTONE && ((want) == EXCLUSIVE || slot_of[p] == 1))

/* find_claimed() for the owner of this session; conflict is the transaction to wait for. */
inline find_claimed(me, what, t)
{
	claimed = NOBODY; holds = 0; conflict = 0; top_token = 0;
	i = 0;
	do
	:: i < POSITIONS ->
		top_token = (rows[i] && token[i] > top_token -> token[i] : top_token);
		if
		:: rows[i] && ins[i] == 0 && owner[i] == OWNER_OF(me) ->
			j = (ends[i] > t || (what == ASSERT && (lockers[i] & OWN_LOCKS(me))));
			if
			:: claimed == NOBODY || j > holds || (j == holds && token[i] > token[claimed]) ->
				claimed = i; holds = j
			:: else
			fi
		:: else
		fi;
		i++
	:: else -> break
	od;
	if
	:: claimed != NOBODY && what != ASSERT ->	/* action_waits_for() */
#ifndef B_ACTION_WAITS_FOR_NOBODY
		conflict = rep[claimed];
#endif
#ifndef B_RELEASE_IGNORES_ASSERTIONS
		conflict = (conflict == 0 && what == RELEASE -> lck[claimed] : conflict)
#endif
	:: claimed != NOBODY && what == ASSERT && rep[claimed] != 0 ->	/* change_that_ends() */
		i = 0; j = 0;			/* j: has the last version */
		do
		:: i < POSITIONS && rows[i] && ins[i] != 0 && slot_of[i] == slot_of[claimed] ->
			conflict = (owner[i] == TOMBSTONE || token[i] != token[claimed] -> ins[i] : conflict);
			j = j || rep[i] == 0;
			i++
		:: i < POSITIONS && !(rows[i] && ins[i] != 0 && slot_of[i] == slot_of[claimed]) -> i++
		:: else -> break
		od;
		conflict = (conflict == 0 && !j -> rep[claimed] : conflict)
	:: else
	fi;
	i = 0; j = 0
}

/* ---------------------------------------------------------------- claims */

/* Does the session hold the lease in this row, as it knows? Its assertions outlive the expiry. */
#define HOLDS(s, p) \
	(slot_of[p] != 0 && owner[p] == OWNER_OF(s) && (ends[p] > now || asserted[s]) && \
	 (inserted_by[p] == 0 || status[inserted_by[p]] == COMMITTED || IS_MINE(inserted_by[p], s)) && \
	 !(replaced_by[p] != 0 && (status[replaced_by[p]] == COMMITTED || IS_MINE(replaced_by[p], s))))

#define COUNT(owners)	(((owners) >> 1 & 1) + ((owners) >> 2 & 1) + ((owners) >> 3 & 1))

/*
 * ONE: a lease slot has at most one holder, and nobody holds a lease beside an
 * exclusive one. There are no more slots than permits.
 */
inline check_holders()
{
	h0 = 0; h1 = 0; h2 = 0; i = 0;	/* owners of each lease slot */
	do
	:: i < POSITIONS ->
		if
		:: HOLDS(0, i) || HOLDS(1, i) || HOLDS(2, i) ->
			h0 = (slot_of[i] == 1 -> h0 | (1 << owner[i]) : h0);
			h1 = (slot_of[i] == 2 -> h1 | (1 << owner[i]) : h1);
			h2 = (slot_of[i] == 3 -> h2 | (1 << owner[i]) : h2)
		:: else
		fi;
		i++
	:: else -> break
	od;
	claim_ONE = COUNT(h0) <= 1 && COUNT(h1) <= 1 && COUNT(h2) <= 1 && !(h0 != 0 && (h1 != 0 || h2 != 0));
	assert(claim_ONE);
	i = 0; h0 = 0; h1 = 0; h2 = 0
}

/* LATE: a lease that is released or asserted was not granted to another owner since. */
inline check_late(me, p)
{
	i = 0;
	do
	:: i < POSITIONS ->
		claim_LATE = !(slot_of[i] != 0 && token[i] > token[p] && (slot_of[i] == 1 || slot_of[p] == 1) &&
					   owner[i] != OWNER_OF(me) &&
					   !(inserted_by[i] != 0 && status[inserted_by[i]] == ROLLED_BACK));
		assert(claim_LATE);
		i++
	:: else -> break
	od;
	i = 0
}

/*
 * REFUSAL: at one moment since the resource was locked, or since a look without
 * the lock began, it had to be refused. If a look without the lock names no
 * transaction, then it was because of a lease that was committed. moment() asks
 * that after each change.
 */
#define MAY_BE_REFUSED	(was_right && (was_held || by_open))

inline moment()
{
	if
	:: wants != 0 && !was_held ->
		look_at_once(0);
		decide(0, wants, now);
		was_right = was_right || refused;
		was_held = was_held || (refused && by_lease)
	:: else
	fi
}

/* ---------------------------------------------------------------- writes */

/* GetCurrentTransactionId() */
inline begin_transaction(me)
{
	status[XID(me, 0)] = RUNNING;
	if
	:: level[me] >= 1 -> status[XID(me, 1)] = RUNNING
	:: else
	fi;
	if
	:: level[me] >= 2 -> status[XID(me, 2)] = RUNNING
	:: else
	fi
}

/*
 * store_try_write() of e_...; p is the version that it replaces.
 * CURRENT: that is the current one, and nobody else changes it, or has a lock on
 * it that conflicts. So the write does not wait, and does not fail.
 */
inline write(me, p, keeps_lease)
{
	begin_transaction(me);
	k = 0;
	do
#ifdef PLACE_LOW
	:: k < POSITIONS && slot_of[k] != 0 -> k++
	:: else -> break
#else
	:: k < POSITIONS && slot_of[POSITIONS - 1 - k] != 0 -> k++
	:: else -> k = POSITIONS - 1 - k; break
#endif
	od;
	assert(k < POSITIONS);
	slot_of[k] = e_slot + 1; owner[k] = e_owner; ends[k] = e_end; token[k] = e_token;
	inserted_by[k] = XID(me, level[me]); replaced_by[k] = 0; lockers[k] = 0;
	if
	:: p != NOBODY ->
		claim_CURRENT = slot_of[p] == e_slot + 1 &&
			(inserted_by[p] == 0 || status[inserted_by[p]] == COMMITTED || IS_MINE(inserted_by[p], me)) &&
			(replaced_by[p] == 0 || status[replaced_by[p]] == ROLLED_BACK) &&
			((lockers[p] & ~OWN_LOCKS(me)) == 0 || keeps_lease);
		replaced_by[p] = XID(me, level[me]);
#ifndef B_LOCKS_NOT_INHERITED
		lockers[k] = lockers[p]
#endif
	:: else ->
		claim_CURRENT = 1;
		x = 0;
		do
		:: x < POSITIONS ->
			claim_CURRENT = claim_CURRENT && !(x != k && slot_of[x] == e_slot + 1 &&
				!(inserted_by[x] != 0 && status[inserted_by[x]] == ROLLED_BACK) &&
				!(replaced_by[x] != 0 && status[replaced_by[x]] == COMMITTED));
			x++
		:: else -> break
		od
	fi;
	assert(claim_CURRENT);
	k = 0; x = 0
}

/* new_lease(), in the slot that decide() chose */
inline write_grant(me, t, to, in_slot, last)
{
	e_slot = in_slot; e_owner = OWNER_OF(me); e_end = t + TTL; e_token = last + 1;
	write(me, to, 0);
	check_holders()
}

/* make_tombstone() */
inline write_tombstone(me, p, t)
{
	e_slot = slot_of[p] - 1; e_owner = TOMBSTONE; e_end = (ends[p] < t -> ends[p] : t); e_token = token[p];
	write(me, p, 0)
}

/* write_renewal() */
inline write_renewal(me, p, t)
{
	e_slot = slot_of[p] - 1; e_owner = owner[p]; e_token = token[p];
	e_end = (t + TTL + 1 > ends[p] -> t + TTL + 1 : ends[p]);
	write(me, p, 1)
}

/*
 * store_lock_weakly(): also the versions that a renewal has written which was open
 * when the look met it, and may be committed now.
 */
inline lock_row(me, p)
{
	begin_transaction(me);
	asserted[me] = (asserted[me] == 0 -> level[me] + 1 : asserted[me]);
	i = 0;
	do
	:: i < POSITIONS ->
		if
#ifndef B_ONLY_OLD_VERSION_LOCKED
		:: i != p && replaced_by[p] != 0 && status[replaced_by[p]] != ROLLED_BACK && slot_of[i] == slot_of[p] &&
			inserted_by[i] != 0 && status[inserted_by[i]] != ROLLED_BACK ->
			lockers[i] = lockers[i] | (1 << XID(me, level[me]))
#endif
		:: i == p ->
			lockers[i] = lockers[i] | (1 << XID(me, level[me]))
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0;
	check_holders()
}

/* Forget dead versions, unless a look may have noted them. */
inline forget_dead()
{
	i = 0;
	do
	:: i < POSITIONS && !looking ->
		if
		:: slot_of[i] != 0 && ((inserted_by[i] != 0 && status[inserted_by[i]] == ROLLED_BACK) ||
							   (replaced_by[i] != 0 && status[replaced_by[i]] == COMMITTED)) ->
			slot_of[i] = 0; owner[i] = 0; ends[i] = 0; token[i] = 0; inserted_by[i] = 0;
			replaced_by[i] = 0; lockers[i] = 0
		:: else ->
			inserted_by[i] = (inserted_by[i] != 0 && status[inserted_by[i]] == COMMITTED -> 0 : inserted_by[i]);
			replaced_by[i] = (replaced_by[i] != 0 && status[replaced_by[i]] == ROLLED_BACK -> 0 : replaced_by[i])
		fi;
		i++
	:: else -> break
	od;
	i = 0
}

/* The end of the transaction, or of its savepoints from the given level on. */
inline end_transaction(me, from, how)
{
	k = from; j = 0;
	do
	:: k <= 2 ->
		j = j | (1 << XID(me, k));	/* its locks end */
		if
		:: status[XID(me, k)] == RUNNING -> status[XID(me, k)] = how; any_ended = looking
		:: else
		fi;
		k++
	:: else -> break
	od;
	i = 0;
	do
	:: i < POSITIONS ->
		k = from;
		do
		:: k <= 2 -> lockers[i] = lockers[i] & ~(1 << XID(me, k)); k++
		:: else -> break
		od;
		i++
	:: else -> break
	od;
	asserted[me] = (asserted[me] > from -> 0 : asserted[me]);
	level[me] = (from > 0 -> from - 1 : 0);
	over[me] = from == 0;
	k = 0; j = 0;
	forget_dead();
	moment();
	check_holders()
}

/* ---------------------------------------------------------------- calls of the other sessions */

inline other_acquires(me)
{
	look_at_once(me);
	decide(me, WANTS(me), now);
	if
	:: !refused ->
		write_grant(me, now, target, seat, top_token);
		locked_by = me + 1;
		moment()
	:: else
	fi
}

/* end_taken_over(), and unlock */
inline other_ends_taken_over(me)
{
	look_at_once(me);
	m = 0;
	do
	:: m < POSITIONS ->
		if
		:: IS_TAKEN_OVER(m, WANTS(me)) && ends[m] <= now -> write_tombstone(me, m, now)
		:: else
		fi;
		m++
	:: else -> break
	od;
	m = 0;
	locked_by = 0;
	moment()
}

inline other_acts(me, what)
{
	look_at_once(me);
	find_claimed(me, what, now);
	if
	:: claimed != NOBODY && conflict == 0 && what == RELEASE ->
		check_late(me, claimed);
		write_tombstone(me, claimed, now)
	:: claimed != NOBODY && conflict == 0 && what == RENEW && holds -> write_renewal(me, claimed, now)
	:: claimed != NOBODY && conflict == 0 && what == ASSERT && holds ->
		check_late(me, claimed);
		lock_row(me, claimed)
	:: else -> conflict = (claimed != NOBODY && (what == RELEASE || holds) -> conflict : 0)
	fi;
	moment()
}

#define SAVEPOINT_OR_END(me) \
	:: d_step { level[me] < LEVELS && status[XID(me, level[me] + 1)] == NOT_BEGUN -> level[me]++ } \
	:: d_step { level[me] >= 1 && status[XID(me, 1)] == RUNNING -> end_transaction(me, 1, ROLLED_BACK) } \
	:: d_step { level[me] >= 2 && status[XID(me, 2)] == RUNNING -> end_transaction(me, 2, ROLLED_BACK) } \
	:: d_step { end_transaction(me, 0, COMMITTED) }; goto done \
	:: d_step { end_transaction(me, 0, ROLLED_BACK) }; goto done

proctype other(byte me)
{
	byte calls, awaits, what;

again:
	if
	:: d_step { calls < CALLS && (CAN & ACQUIRE) && locked_by == 0 -> calls++; other_acquires(me) };
		if
		:: locked_by == me + 1 -> d_step { other_ends_taken_over(me) }
		:: else
		fi;
		goto again
	:: calls < CALLS && (CAN & RELEASE) -> calls++; what = RELEASE; goto act
	:: calls < CALLS && (CAN & RENEW) -> calls++; what = RENEW; goto act
	:: calls < CALLS && (CAN & ASSERT) -> calls++; what = ASSERT; goto act
	SAVEPOINT_OR_END(me)
	fi;
	goto again;

act:
	if
#ifdef B_ASSERTS_WITHOUT_LOCK
	:: d_step { locked_by == 0 || what == ASSERT -> other_acts(me, what); awaits = conflict }
#else
	:: d_step { locked_by == 0 -> other_acts(me, what); awaits = conflict }
#endif
	fi;
	if
	:: awaits == 0 -> what = 0; goto again
	:: awaits != 0 ->
		if
		:: status[awaits] != RUNNING -> awaits = 0; goto act
		:: d_step { awaits = 0; what = 0; end_transaction(me, 0, ROLLED_BACK) }	/* canceled, or a deadlock */
		fi
	fi;
done:
	calls = 0
}

/* ---------------------------------------------------------------- session 0, step by step */

/* scan_rows(): go to the next version; cursor is 1 + its position, 0 in the end. */
inline next_version()
{
	do
	:: scan_slot > 0 && cursor == 0 -> scan_slot--; cursor = POSITIONS
	:: scan_slot > 0 && cursor > 0 && slot_of[cursor - 1] == scan_slot && !seen[cursor - 1] && IS_SEEN(cursor - 1, 0) ->
		break
	:: scan_slot > 0 && cursor > 0 &&
		!(slot_of[cursor - 1] == scan_slot && !seen[cursor - 1] && IS_SEEN(cursor - 1, 0)) -> cursor--
	:: scan_slot == 0 -> cursor = 0; break
	od
}

/* Settled? Take into account how the transaction of a version ended. settle() */
inline settle(p)
{
	if
	:: n_rep[p] != 0 && status[n_rep[p]] != RUNNING ->
		settled = 1; again = 1;
		seen[p] = seen[p] && status[n_rep[p]] == ROLLED_BACK;
		n_rep[p] = 0
	:: else
	fi;
	if
	:: n_ins[p] != 0 && status[n_ins[p]] != RUNNING ->
		settled = 1; again = 1;
		seen[p] = seen[p] && status[n_ins[p]] == COMMITTED;
		n_ins[p] = 0
	:: else
	fi
}

inline forget_look()
{
	i = 0;
	do
	:: i < POSITIONS -> seen[i] = 0; n_ins[i] = 0; n_rep[i] = 0; n_lock[i] = 0; i++
	:: else -> break
	od;
	looking = 0; any_ended = 0; was_right = 0; was_held = 0; wants = 0;
	forget_dead()
}

/* How many rows has the look found? */
inline count_rows()
{
	i = 0; j = 0;
	do
	:: i < POSITIONS -> j = j + seen[i]; i++
	:: else -> break
	od;
	i = 0
}

#define UNLOCK	locked_by = (locked_by == 1 -> 0 : locked_by)

proctype caller()
{
	byte calls, what, t, awaits;
	byte scan_slot, cursor, to, last, in_slot, locked_at;
	bit under_lock, settled, again;

start:
	if
	:: calls < CALLS0 && (CAN0 & ACQUIRE) -> calls++; what = ACQUIRE; goto look
	:: calls < CALLS0 && (CAN0 & RELEASE) -> calls++; what = RELEASE; goto lock
	:: calls < CALLS0 && (CAN0 & RENEW) -> calls++; what = RENEW; goto lock
	:: calls < CALLS0 && (CAN0 & ASSERT) -> calls++; what = ASSERT; goto lock
	SAVEPOINT_OR_END(0)
	fi;
	goto start;

	/* lock_resource(), and then the clock */
lock:
#ifdef B_CLOCK_BEFORE_LOCK
	t = now;
#endif
	if
	:: d_step {
#if defined(B_NO_LOCK) || defined(B_LOOK_BEFORE_LOCK)
			1 ->
#else
			locked_by == 0 -> locked_by = 1;
#endif
			under_lock = 1; locked_at = now;
			wants = (what == ACQUIRE -> WANTS0 : 0); was_right = 0; was_held = 0;
			moment()
		}
	fi;
#ifndef B_CLOCK_BEFORE_LOCK
	t = now;
#endif

	/* store_look() */
look:
	if
	:: d_step {
			looking = 1; any_ended = 0; settled = 0; scan_slot = SLOTS; cursor = POSITIONS;
			if
			:: what == ACQUIRE && !under_lock -> wants = WANTS0; moment()
			:: else
			fi
		}
	fi;
scan:
	if
	:: atomic {
			d_step {
				next_version();
				if
				:: cursor > 0 ->
					seen[cursor - 1] = 1;
					n_ins[cursor - 1] = (IS_OTHERS(inserted_by[cursor - 1], 0) -> inserted_by[cursor - 1] : 0)
				:: else
				fi
			};
			if
			:: cursor == 0 -> goto settling
			:: else
			fi
		}
	fi;
	atomic {					/* read_row() */
		d_step { note_header(cursor - 1, 0, n_rep[cursor - 1], n_lock[cursor - 1]); x = 0 };
		if
		:: slot_of[cursor - 1] == 1 && n_ins[cursor - 1] == 0 && n_rep[cursor - 1] == 0 -> goto settling
		:: else -> cursor--; goto scan
		fi
	};

	/* settle_rows() */
settling:
	if
	:: d_step { again = 0; cursor = POSITIONS; scan_slot = 0 }
	fi;
	do
	:: d_step {
			cursor > 0 ->
			do
			:: cursor > 0 && !(seen[cursor - 1] && (n_ins[cursor - 1] != 0 || n_rep[cursor - 1] != 0)) -> cursor--
			:: else -> break
			od;
			if
			:: cursor > 0 -> settle(cursor - 1); cursor--
			:: else
			fi
		}
	:: d_step { cursor == 0 && again -> again = 0; cursor = POSITIONS }
	:: cursor == 0 && !again -> break
	od;

	if
	:: what == ACQUIRE && !under_lock ->	/* refuse_by_first_look() */
		atomic {
			d_step {
				count_rows();
#if defined(B_DIFFERENT_MOMENTS)
				awaits = 1;
#elif defined(B_ONE_ROW_IS_ONE_MOMENT)
				awaits = (j == 1 || !any_ended);
#else
				awaits = ((j == 1 && !settled) || !any_ended);
#endif
				j = 0;
				use_look(); decide(0, WANTS0, now);
				claim_REFUSAL = !(awaits && refused) || MAY_BE_REFUSED;
				assert(claim_REFUSAL);
				awaits = awaits && refused;
#ifdef B_LOOK_BEFORE_LOCK
				to = target; last = top_token; in_slot = seat; t = now;
				again = !refused;
#else
				forget_look()
#endif
			};
			if
			:: awaits -> awaits = 0; goto finished
			:: else
			fi
		};
#ifdef B_LOOK_BEFORE_LOCK
		if
		:: d_step { locked_by == 0 -> locked_by = 1; under_lock = 1; locked_at = now }
		fi;
		if
		:: again -> again = 0; goto granting
		:: else -> goto finished
		fi;
#endif
		goto lock
	:: what == ACQUIRE && under_lock ->		/* grant_under_lock() */
		atomic {
			d_step {
				use_look(); decide(0, WANTS0, t);
				claim_REFUSAL = !refused || was_right;
				assert(claim_REFUSAL);
				to = target; last = top_token; in_slot = seat; again = !refused
			};
			if
			:: again -> again = 0; goto granting
			:: else -> goto finished
			fi
		}
	:: what != ACQUIRE ->		/* try_to_act(), try_assert() */
		atomic {
			d_step {
				t = (what == ASSERT -> now : t);
				use_look(); find_claimed(0, what, t);
				to = claimed;
#ifdef B_RENEWS_EXPIRED
				holds = holds || what == RENEW;
#endif
				awaits = (claimed != NOBODY && (what == RELEASE || holds) -> conflict : 0);
				again = (claimed != NOBODY && conflict == 0 && (what == RELEASE || holds))
			};
			if
			:: again && awaits == 0 -> again = 0; goto acting
			:: awaits != 0 -> goto waiting
			:: else -> goto finished
			fi
		}
	fi;

granting:
#ifdef B_UNLOCKED_BEFORE_WRITE
	UNLOCK;
#endif
	if
	:: d_step { write_grant(0, t, to, in_slot, last); wants = 0 }
	fi;
	/* end_taken_over() */
	cursor = POSITIONS;
	do
	:: d_step {
			cursor > 0 ->
			use_look();
			do
			:: cursor > 0 && !(IS_TAKEN_OVER(cursor - 1, WANTS0) && cursor - 1 != to) -> cursor--
			:: else -> break
			od;
			if
#ifndef B_TAKEN_OVER_STAYS
			:: cursor > 0 -> write_tombstone(0, cursor - 1, t); cursor--
#endif
			:: else -> cursor = 0
			fi
		}
	:: cursor == 0 -> break
	od;
	goto finished;

acting:
	if
	:: d_step {
			what == RELEASE ->
			check_late(0, to);
			write_tombstone(0, to, t)
		}
	:: d_step {
			what == RENEW ->
			/* CLOCK: what is renewed or asserted was held when the resource was locked. */
			claim_CLOCK = ends[to] > locked_at;
			assert(claim_CLOCK);
			write_renewal(0, to, t)
		}
	:: d_step {
			what == ASSERT ->
			/* The clock is read again after the row lock. */
#ifndef B_CLOCK_NOT_READ_AGAIN
			if
			:: ends[to] > now || (lockers[to] & OWN_LOCKS(0)) -> check_late(0, to); lock_row(0, to)
			:: else
			fi
#else
			claim_CLOCK = ends[to] > now || (lockers[to] & OWN_LOCKS(0));
			assert(claim_CLOCK);
			lock_row(0, to)
#endif
		}
	fi;
	goto finished;

	/* wait_to_act(); NOWAIT: not under the resource lock */
waiting:
	if
	:: d_step {
#ifndef B_WAITS_UNDER_LOCK
			UNLOCK;
#endif
			forget_look(); under_lock = 0; settled = 0; to = 0; t = 0; locked_at = 0; cursor = 0; again = 0;
			claim_NOWAIT = locked_by != 1;
			assert(claim_NOWAIT)
		}
	fi;
	if
	:: status[awaits] != RUNNING -> awaits = 0; goto lock
	:: d_step { awaits = 0; end_transaction(0, 0, ROLLED_BACK) }; goto done
	fi;

finished:
	if
	:: d_step {
			UNLOCK;
			forget_look();
			under_lock = 0; settled = 0; again = 0; to = 0; t = 0; last = 0; in_slot = 0; locked_at = 0;
			cursor = 0; scan_slot = 0; what = 0; awaits = 0
		}
	fi;
	goto start;
done:
	calls = 0
}

/* Time that passes is of interest only before a lease ends. */
proctype clock()
{
	do
	:: d_step { now < MAX_TIME -> now++; moment(); check_holders() }
	od
}

inline first_row(s, o, e)
{
	if
	:: o != NO_ROW -> slot_of[s] = s + 1; owner[s] = o; ends[s] = e; token[s] = 1 + s
	:: else
	fi
}

init {
	d_step {
		first_row(0, OWNER0, END0);
		first_row(1, OWNER1, END1);
		first_row(2, OWNER2, END2)
	};
	atomic { run caller(); run other(1); run other(2); run clock() }
}
