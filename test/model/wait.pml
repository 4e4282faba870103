/*
 * wait.pml
 *		Waiting for leases: lines, turns and wake-ups, in the words of
 *		src/README.md and src/wait. README.md has the claims, the bounds, and what
 *		is left out.
 *
 * Three waiters and a session that holds the lease, for one resource or two. A
 * look is one step: grant.pml shows that a refusal was right at one moment, and
 * that look and write are one under the resource lock. What is done under the
 * lock of a bucket is one step, too. Beside it a waiter writes only its alarm
 * and its state, in begin_look(); a look follows these, and a change is visible
 * before its wake-up reads them, so it does not matter what comes between.
 *
 * No timer ends a sleep but the alarm. The clock may stop at any time, and so
 * may the holder, also with an open transaction.
 *
 * Set by run:
 *	MODE0..2	what the waiters want
 *	BOTH		number of the waiter that waits for both resources
 *	OWN			number of the waiter whose owner has the holder's lease
 *	AGAIN		number of the waiter that has acquired and released the lease in
 *				the transaction in which it waits for it; AGAIN2: another one
 *	LIMITED		number of the waiter that waits until time 1
 *	STOPPED		number of the waiter that may stop for ever
 *	WRITES		number of changes by the holder
 *	HELD		mode of the holder's lease
 *	BEGINS		how it begins: 1 held for ever, 2 held until time 1, 3 acquired by an
 *				open transaction, 0 any of these
 *	WAITERS, CANCELS	how many at most
 *	CYCLES		set to look for cycles: claim REST
 *	B_...		breaks the protocol in one place
 */
#define NOBODY		3
#define HOLDER		3			/* its number as a session */

#define EXCLUSIVE	1
#define SHARED		2
#define PERMIT		3			/* one of two */

#ifndef MODE0
#define MODE0		EXCLUSIVE
#endif
#ifndef MODE1
#define MODE1		EXCLUSIVE
#endif
#ifndef MODE2
#define MODE2		EXCLUSIVE
#endif
#ifndef BOTH
#define BOTH		NOBODY
#endif
#ifndef OWN
#define OWN			NOBODY
#endif
#ifndef LIMITED
#define LIMITED		NOBODY
#endif
#ifndef AGAIN2
#define AGAIN2		NOBODY
#endif
#ifndef AGAIN
#define AGAIN		NOBODY
#endif
#ifndef STOPPED
#define STOPPED		NOBODY
#endif
#ifndef WRITES
#define WRITES		2
#endif
#ifndef HELD
#define HELD		EXCLUSIVE
#endif
#ifndef WAITERS
#define WAITERS		3
#endif
#ifndef CANCELS
#define CANCELS		3
#endif
#ifndef BEGINS
#define BEGINS		0
#endif
#define LINES		(BOTH == NOBODY -> 1 : 2)
#define MODE(w)		((w) == 0 -> MODE0 : ((w) == 1 -> MODE1 : ((w) == 2 -> MODE2 : EXCLUSIVE)))

/* Times. The clock goes from 0 to 2. */
#define AT_ONCE		0
#define NEVER		7

/* TurnState */
#define QUEUED		0
#define CALLED		1
#define AWAY		2
#define ASIDE		3
#define SKIPPED		4

byte now;
byte joined;					/* number of waiters that have come */

/* The lease of the holder, for each resource: committed, and after its open change. */
bool held[2], will_hold[2];
byte ends[2], will_end[2];
byte changed_by[2];				/* transaction of that change; 0: none */
bool in_progress[8];			/* transactions: 1 to 3 of the waiters, the others of the holder */
bool whole;						/* the transaction around the holder's savepoint goes on */

/* The lease of each waiter, NEVER-ending. */
#define NOT_GRANTED	0
#define RELEASED	1			/* an open transaction acquired and released it */
#define OPEN		2
#define COMMITTED	3
byte granted[4];
bit second[4];					/* which resource it has */

/* Waiter */
byte alarm[4];
bit news[4];					/* woken since it began to look */
byte asleep[4];
bit gone[4];					/* has stopped for ever */
byte n_cancels;
#define IN_QUEUE	1			/* asleep there */
#define IN_MANAGER	2			/* in the lock manager */
byte acting;					/* number of sessions that are in a call, and not asleep */

/* Entry; line[3 * resource + n] is the n-th waiter of a line */
byte line[7];
byte state[6], awaited[6], known_end[6];

#define AT(r, n)		line[3 * (r) + (n)]
#define ENTRY(r, w)		(3 * (r) + (w))
#define XID(w)			((w) + 1)

/* Scratch variables of one step. */
hidden byte i, k, n, e, next, free_at, taken;
hidden byte mine, late;
hidden byte f_tx, f_until;		/* a refusal: transaction, or held until */
hidden byte refused, f_own, f_open, own_tx, own_until;
hidden byte claim_ORDER, claim_SLEEP;

/*
 * A waiter that is not the first looks at its line after handoff_timeout. In the
 * model it does that only if another waiter has stopped for ever, and something
 * has happened since its last look.
 */
inline check_lines()
{
#if STOPPED != NOBODY
	check[0] = 1; check[1] = 1; check[2] = 1
#else
	skip
#endif
}
#if STOPPED != NOBODY
bit check[4];
#define CHECKS_LINE(w)	(check[w] && gone[STOPPED])
#else
#define CHECKS_LINE(w)	0
#endif

/* Has the transaction ended that a waiter waits for? store_wait_for() */
#ifdef B_WAITS_FOR_THE_WHOLE
#define HAS_ENDED(tx)	(!in_progress[tx] && (tx <= 3 || !whole))
#else
#define HAS_ENDED(tx)	(!in_progress[tx])
#endif

/* Can a sleep of this waiter end? */
#define CAN_WAKE(w) \
	((asleep[w] == IN_QUEUE && (news[w] || now >= alarm[w] || CHECKS_LINE(w))) || \
	 (asleep[w] == IN_MANAGER && HAS_ENDED(awaited[w])))

/* The holder begins to change its lease. */
#define WRITE(r) \
	changed_by[r] = 5 + n_changes; in_progress[5 + n_changes] = 1

/* ---------------------------------------------------------------- looks */

/* obstacle_in(), for each row; decide() */
inline see(want, mode, xid, until, own)
{
	if
	:: want == EXCLUSIVE ->
		refused = 1;
		if
		:: xid -> f_tx = xid; f_open = 1
		:: else -> f_until = (until > f_until -> until : f_until)
		fi;
		f_own = f_own || (own && (!xid || mode != EXCLUSIVE))
	:: want != EXCLUSIVE && mode == EXCLUSIVE ->
		refused = 1; taken = 9;
		f_tx = xid; f_open = (xid != 0); f_until = until; f_own = own && !xid
	:: want != EXCLUSIVE && mode != EXCLUSIVE && taken < 9 ->
		taken++;
		if
		:: xid -> f_tx = xid; f_open = 1
		:: else -> f_until = (f_until == 0 || until < f_until -> until : f_until)
		fi;
		if
		:: own -> f_own = 1; own_tx = xid; own_until = until
		:: else
		fi
	:: else
	fi
}

inline look(me, want, r)
{
	refused = 0; f_tx = 0; f_until = 0; f_own = 0; f_open = 0; taken = 0;
	if
	:: changed_by[r] && (held[r] || will_hold[r]) -> see(want, HELD, changed_by[r], NEVER, OWN == me)
	:: !changed_by[r] && held[r] && ends[r] > now -> see(want, HELD, 0, ends[r], OWN == me)
	:: else
	fi;
	i = 0;
	do
	:: i < 3 && i != me && granted[i] && second[i] == r ->
		see(want, MODE(i), (granted[i] == COMMITTED -> 0 : XID(i)), NEVER, 0); i++
	:: i < 3 && (i == me || !granted[i] || second[i] != r) -> i++
	:: i == 3 -> break
	od;
	if
	:: taken < 9 && want != EXCLUSIVE && f_own ->	/* decide_own() */
		refused = 1; f_tx = own_tx; f_until = own_until; f_open = (own_tx != 0)
	:: taken < 9 && want == PERMIT && !f_own && taken >= 2 ->
		refused = 1; f_tx = 0	/* any of them may end first */
	:: taken < 9 && want != EXCLUSIVE && !f_own && (want == SHARED || taken < 2) ->
		f_tx = 0; f_until = 0; f_open = 0
	:: else
	fi;
	f_until = (f_tx || f_until == 0 -> NEVER : f_until)
}

/* ---------------------------------------------------------------- turns */

#ifdef B_ASIDE_IS_FIRST
#define IS_PASSED_OVER(x)	(state[x] == SKIPPED)
#else
#define IS_PASSED_OVER(x)	(state[x] == ASIDE || state[x] == SKIPPED)
#endif

/* note_sessions_wakeup(): waiters in the line that run this transaction; 0: any */
inline note_sessions_wakeup(r, xid)
{
#ifndef B_SESSIONS_NOT_WOKEN
	i = 0;
	do
	:: i < 3 && AT(r, i) != NOBODY ->
		if
		:: in_progress[XID(AT(r, i))] && (xid == 0 || xid == XID(AT(r, i))) -> news[AT(r, i)] = 1
		:: else
		fi;
		i++
	:: else -> break
	od
#else
	skip
#endif
}

/* call_first() */
inline call_first(me, r)		/* from free_at on */
{
	k = 0;
	do
	:: k < 3 && AT(r, k) != NOBODY && IS_PASSED_OVER(ENTRY(r, AT(r, k))) ->
#ifndef B_PASSED_OVER_NOT_WOKEN
		if
		:: AT(r, k) != me -> news[AT(r, k)] = 1
		:: else
		fi;
#endif
		k++
	:: else -> break
	od;
	if
	:: k < 3 && AT(r, k) != NOBODY ->
		e = ENTRY(r, AT(r, k));
#ifndef B_KNOWN_END_DROPPED
		if
		:: state[e] != AWAY && free_at < known_end[e] -> known_end[e] = free_at
		:: else
		fi;
#endif
		if
		:: AT(r, k) == me
		:: AT(r, k) != me && state[e] != AWAY && free_at < alarm[AT(r, k)] ->
			state[e] = CALLED; news[AT(r, k)] = 1
		:: AT(r, k) != me && (state[e] == AWAY || free_at >= alarm[AT(r, k)]) && awaited[e] ->
			note_sessions_wakeup(r, 0)
		:: else
		fi
	:: else
	fi;
	k = 0; e = 0
}

/* wake_after_change() */
inline wake(me, r)
{
	check_lines();
	call_first(me, r)
}

/* is_overdue() */
#define IS_OVERDUE(e, w)	(gone[w] && (state[e] == CALLED || alarm[w] <= now))

/*
 * take_turn(). Claim ORDER: nobody goes before a waiter that came earlier, unless
 * that one has stood aside, waits for the transaction of this one, or has stopped.
 */
inline take_turn(me, r)
{
	mine = 1; k = 0;
	do
	:: k == 3 || AT(r, k) == NOBODY -> break
	:: else ->
		e = ENTRY(r, AT(r, k));
		if
		:: AT(r, k) == me ->
#ifndef B_TURN_KEEPS_KNOWN_END
			known_end[e] = (known_end[e] > now -> AT_ONCE : known_end[e]);
#endif
			if
			:: IS_PASSED_OVER(e) -> state[e] = QUEUED
			:: else
			fi;
			break
		:: AT(r, k) != me && IS_PASSED_OVER(e) -> k++
#ifndef B_WAITS_FOR_ME_IGNORED
		:: AT(r, k) != me && !IS_PASSED_OVER(e) && state[e] != CALLED && me < 3 &&
			awaited[e] == XID(me) && in_progress[XID(me)] -> k++
#endif
		:: else ->
#ifndef B_STOPPED_KEEPS_ITS_TURN
			if
			:: IS_OVERDUE(e, AT(r, k)) -> state[e] = SKIPPED; move_to_end(r, k)
			:: else ->
#else
				skip;
#endif
				if
				:: state[e] == QUEUED -> state[e] = CALLED; news[AT(r, k)] = 1; check_lines()
				:: state[e] == AWAY && !in_progress[awaited[e]] -> state[e] = CALLED; check_lines()
				:: else
				fi;
				mine = 0;
				break
#ifndef B_STOPPED_KEEPS_ITS_TURN
			fi
#endif
		fi
	od;
#ifdef B_NO_ORDER
	mine = 1;
#endif
	k = 0; e = 0;
	do
	:: mine && k < 3 && AT(r, k) != NOBODY && AT(r, k) != me ->
		claim_ORDER = state[ENTRY(r, AT(r, k))] >= ASIDE || gone[AT(r, k)] ||
			(me < 3 && awaited[ENTRY(r, AT(r, k))] == XID(me));
		assert(claim_ORDER);
		k++
	:: else -> break
	od;
	k = 0
}

/* skip(): the entry at k moves to the end of its line */
inline move_to_end(r, k)
{
	n = AT(r, k); i = k;
	do
	:: i < 2 -> AT(r, i) = AT(r, i + 1); i++
	:: else -> break
	od;
	AT(r, 2) = NOBODY; i = 0;
	do
	:: AT(r, i) != NOBODY -> i++
	:: else -> break
	od;
	AT(r, i) = n
}

/* turns_were_refused(), by the refusal f_...; at_once: it must look again */
inline turns_were_refused(me, r)
{
	e = ENTRY(r, me);
	if
	:: !news[me] ->
		n = (f_own -> ASIDE : (f_tx && me != BOTH -> AWAY : QUEUED));
		mine = (f_tx && !(awaited[e] == f_tx && state[e] != CALLED));	/* not known */
		late = (n == ASIDE && state[e] != ASIDE);						/* stands aside */
#ifdef B_WAKE_EACH_OTHER
		mine = (f_tx != 0);
#endif
		awaited[e] = f_tx;
		known_end[e] = (f_open -> AT_ONCE : f_until);
		state[e] = n;
		if
		:: mine -> note_sessions_wakeup(r, f_tx)
		:: else
		fi;
		free_at = AT_ONCE;
		if
#ifndef B_ASIDE_CALLS_NOBODY
		:: late -> call_first(me, r)
#endif
		:: else
		fi;
#ifndef B_ASIDE_LOOKS_ONCE
		at_once = at_once || late
#endif
	:: else -> at_once = 1
	fi;
	e = 0; n = 0
}

/* leave_line(); entry_granted: with the lease of this line */
inline leave_line(me, r, entry_granted)
{
	/* queue_take_out() */
	k = 0;
	do
	:: AT(r, k) != me -> k++
	:: else -> break
	od;
	n = k;						/* its place: those before it have an earlier turn */
	do
	:: k < 2 -> AT(r, k) = AT(r, k + 1); k++
	:: else -> break
	od;
	AT(r, 2) = NOBODY;
#ifdef B_SHARER_HANDS_ON_NOTHING
	if
	:: entry_granted
#else
	if
	:: entry_granted && MODE(me) == EXCLUSIVE
#endif
#ifdef B_LEAVES_SILENTLY
	:: !entry_granted
#endif
#ifdef B_CALLED_LEAVES_SILENTLY
	:: !entry_granted && state[ENTRY(r, me)] == CALLED
#endif
	:: else ->
		/* next_not_passed() */
		next = 0;
		do
		:: next < 3 && AT(r, next) != NOBODY && IS_PASSED_OVER(ENTRY(r, AT(r, next))) -> next++
		:: else -> break
		od;
		free_at = AT_ONCE;
		if
		:: next < 3 && AT(r, next) != NOBODY && !entry_granted &&
#ifndef B_CALLED_HANDS_ON_OLD_END
			state[ENTRY(r, me)] != CALLED &&
#endif
#ifndef B_MODES_HAND_ON
			MODE(AT(r, next)) == MODE(me) &&
#endif
			1 -> free_at = known_end[ENTRY(r, me)]
		:: else
		fi;
		if
#ifdef B_EARLIER_NOT_TOLD
		:: next < n && AT(r, next) != NOBODY
#else
		:: next < n && AT(r, next) != NOBODY && !awaited[ENTRY(r, AT(r, next))]
#endif
		:: else -> call_first(me, r)
		fi
	fi;
	state[ENTRY(r, me)] = QUEUED; awaited[ENTRY(r, me)] = 0; known_end[ENTRY(r, me)] = 0;
	k = 0; n = 0; next = 0
}

/* queue_join(), for one line */
inline append(me, r)
{
	k = 0;
	do
	:: AT(r, k) != NOBODY -> k++
	:: else -> break
	od;
	AT(r, k) = me;
	state[ENTRY(r, me)] = QUEUED; awaited[ENTRY(r, me)] = 0; known_end[ENTRY(r, me)] = NEVER;
	k = 0
}

/* begin_look() */
inline begin_look(me)
{
	if
	:: state[me] == AWAY -> state[me] = QUEUED
	:: else
	fi;
#ifndef B_ALARM_STAYS
	alarm[me] = NEVER;
#endif
#if STOPPED != NOBODY
	check[me] = 0;
#endif
	news[me] = 0
}

/* ---------------------------------------------------------------- sessions */

/* Any step of a waiter may be its last one in the wait, or its last one at all. */
#define CANCEL_OR_STOP \
	:: n_cancels < CANCELS -> n_cancels++; goto leave \
	:: me == STOPPED -> d_step { gone[me] = 1; check_lines() }; goto stopped

/* A look, whose result is kept for the next steps. */
inline keep_look(me, r)
{
	look(me, MODE(me), r);
	is_refused = refused; tx = f_tx; own = f_own; open = f_open; until = f_until
}

/* wait_in_turn() */
proctype waiter(byte me)
{
	bit r, hinted, at_once, own, open, is_refused, with;
	byte tx, until, first_end;

#ifdef B_LOOKS_BEFORE_IT_JOINS
	d_step { joined == me -> keep_look(me, 0); first_end = NEVER };
#endif
	/* wait_begin(). They come in the order of their numbers. */
	d_step {
		joined == me -> joined++;
		acting++;
		append(me, 0);
		if
		:: me == BOTH -> append(me, 1)
		:: else
		fi;
		alarm[me] = NEVER
	};
#ifdef B_LOOKS_BEFORE_IT_JOINS
	if
	:: is_refused -> goto note
	:: else
	fi;
#endif

begin:
	if
	:: d_step { first_end = NEVER; begin_look(me) }
	fi;

	/* try_grant(), for each line. refuse_by_first_look() */
try:
	if
	CANCEL_OR_STOP
	:: me != BOTH && state[me] == CALLED ->
		atomic {
			d_step { hinted = 1; take_turn(me, r) };
			if
			:: mine -> goto locked
			:: else
			fi
		}
	:: me == BOTH || state[me] != CALLED
	fi;
	atomic {
		d_step { keep_look(me, r) };
		if
		:: is_refused -> goto note
		:: else
		fi
	};
	if
	:: hinted					/* refused with "queue" */
	:: atomic { !hinted ->
			d_step { take_turn(me, r) };
			if
			:: mine -> goto locked
			:: else
			fi
		}
	fi;
	goto note;

	/* grant_under_lock() */
locked:
	if
	CANCEL_OR_STOP
	:: atomic {
			d_step {
				keep_look(me, r);
				if
				:: is_refused
				:: else -> granted[me] = OPEN; second[me] = r; in_progress[XID(me)] = 1
				fi
			};
			if
			:: is_refused
			:: !is_refused -> with = 1; goto leave
			:: !is_refused && n_cancels < CANCELS -> n_cancels++; goto leave /* after the write */
			fi
		}
	fi;

note:
	if
	:: atomic {
			d_step {
#ifdef B_NEWS_READ_AFTER_THE_LOOK
				news[me] = 0;
#endif
				f_tx = tx; f_own = own; f_open = open; f_until = until;
				turns_were_refused(me, r);
				own = 0; open = 0; hinted = 0; is_refused = 0;
				until = (first_end < until -> first_end : until)
			};
			if
			:: me == BOTH && r == 0 -> d_step { r = 1; first_end = until; tx = 0 }; goto try
			:: else -> d_step { r = 0; first_end = 0 }
			fi
		}
	fi;

	/* wait_may_go_on() and wait_sleep() */
	if
	:: d_step { (at_once || news[me]) && !(me == LIMITED && now >= 1) -> at_once = 0; tx = 0; until = 0 }; goto begin
	:: d_step { me == LIMITED && now >= 1 -> at_once = 0 }; goto leave
	:: d_step { !at_once && !news[me] && !(me == LIMITED && now >= 1) ->
			if
			:: tx && me != BOTH -> asleep[me] = IN_MANAGER	/* wait_behind_transaction() */
			:: else -> asleep[me] = IN_QUEUE;
				alarm[me] = (me == LIMITED && until > 1 -> 1 : until)	/* sleep_behind_lease() */
			fi;
			tx = 0; until = 0;
			acting--
		};
#ifdef B_SLEEPS_WITHOUT_A_CHECK
		news[me] = 0;
#endif
		if
		:: d_step { CAN_WAKE(me) -> asleep[me] = 0; acting++ }; goto begin
		:: me == STOPPED -> d_step { gone[me] = 1; check_lines(); acting++ }; goto stopped
		:: d_step { n_cancels < CANCELS -> n_cancels++; asleep[me] = 0; acting++ }
		fi
	fi;

	/* wait_end() */
leave:
	if
	:: d_step {
			at_once = 0; hinted = 0; tx = 0; own = 0; open = 0; until = 0; first_end = 0; is_refused = 0;
			r = 0;
			leave_line(me, 0, (with && second[me] == 0));
			if
			:: me != BOTH -> alarm[me] = 0; news[me] = 0; acting--
			:: else
			fi
		}
	fi;
	if
	:: me == BOTH ->
		d_step { leave_line(me, 1, (with && second[me] == 1)); alarm[me] = 0; news[me] = 0; r = second[me]; acting-- }
	:: else
	fi;

	/* The end of the transaction, perhaps later. It is visible before it wakes. */
	if
	:: with ->
		d_step { acting++; granted[me] = COMMITTED; in_progress[XID(me)] = 0; with = 0 };
		d_step { free_at = (MODE(me) == EXCLUSIVE -> NEVER : AT_ONCE); wake(me, r); acting-- };
		d_step { granted[me] = NOT_GRANTED; second[me] = 0; acting++ };	/* a release */
		d_step { free_at = AT_ONCE; wake(me, r); acting--; r = 0 }
	:: !with && granted[me] ->
		d_step { acting++; granted[me] = NOT_GRANTED; second[me] = 0; in_progress[XID(me)] = 0 };
		d_step { free_at = AT_ONCE; wake(me, r); acting--; r = 0 }
	:: !with && !granted[me]
	fi;
	goto done;

stopped:
	if
	:: d_step {
			at_once = 0; hinted = 0; tx = 0; own = 0; open = 0; until = 0; first_end = 0; is_refused = 0;
			r = 0; asleep[me] = 0; acting--
		}
	fi;
	false;
done:
	skip
}

/* A session that changes the leases, each in its own (sub)transaction, or stops. */
proctype holder()
{
	bit r, ok;
	byte n_changes;

	do
	:: n_changes < WRITES ->
		if
		:: d_step { r = 0; acting++ }
		:: d_step { LINES == 2 -> r = 1; acting++ }
		fi;
		/* What it writes: a release (also a break), another end, a lease as a try. */
		if
		:: changed_by[r]		/* it has acquired the lease, and not committed yet */
		:: d_step { !changed_by[r] && held[r] -> WRITE(r); will_hold[r] = 0; will_end[r] = 0 }
		:: d_step { !changed_by[r] && held[r] && ends[r] != 2 -> WRITE(r); will_hold[r] = 1; will_end[r] = 2 }
		:: d_step { !changed_by[r] && held[r] && ends[r] != NEVER -> WRITE(r); will_hold[r] = 1; will_end[r] = NEVER }
		:: !changed_by[r] && (!held[r] || ends[r] <= now) ->
			d_step { look(HOLDER, HELD, r); ok = !refused };
			if
			:: ok -> d_step { take_turn(HOLDER, r); ok = mine }
			:: else
			fi;
			d_step {
				if
				:: ok -> look(HOLDER, HELD, r); ok = !refused
				:: else
				fi;
				if
				:: ok -> WRITE(r); will_hold[r] = 1; will_end[r] = NEVER
				:: else
				fi
			}
		fi;
		d_step { n_changes++; acting-- };
		/* How its transaction ends, if it does. ROLLBACK TO a savepoint is a rollback, too. */
		if
		:: changed_by[r] ->
			if
			:: ok = 1
			:: ok = 0
#ifdef B_WAITS_FOR_THE_WHOLE
			:: ok = 0; whole = 1
#endif
			fi;
			acting++;
#ifdef B_WAKES_BEFORE_THE_END
			d_step { free_at = AT_ONCE; wake(HOLDER, r) };
#endif
			d_step {
				if
				:: ok -> held[r] = will_hold[r]; ends[r] = will_end[r]
				:: else
				fi;
				in_progress[changed_by[r]] = 0; changed_by[r] = 0; will_hold[r] = 0; will_end[r] = 0
			};
			d_step {
				free_at = (ok && held[r] && HELD == EXCLUSIVE && ends[r] > now -> ends[r] : AT_ONCE);
				if
#ifdef B_WAKES_BEFORE_THE_END
				:: 1
#endif
#ifdef B_EARLIER_END_NOT_TOLD
				:: free_at != AT_ONCE
#endif
#ifdef B_ROLLBACK_WAKES_NOBODY
				:: !ok
#endif
				:: else -> wake(HOLDER, r)
				fi;
				ok = 0;
				acting--
			}
		:: else -> ok = 0
		fi
	od
}

/* Time that passes is of interest only before a lease ends. */
#define ENDS_LATER(r) \
	((held[r] && ends[r] > now && ends[r] != NEVER) || (will_hold[r] && will_end[r] > now && will_end[r] != NEVER))

proctype clock()
{
	do
	:: d_step { now < 2 && (ENDS_LATER(0) || ENDS_LATER(1) || (LIMITED != NOBODY && now == 0)) -> now++; check_lines() }
	od
}

/*
 * Claim SLEEP: while no session acts, and no alarm has come, no waiter sleeps that could be
 * granted the lease, unless another one is before it in line that is not passed
 * over, and does not wait for this one.
 */
#define EXCUSES(u, w, r) \
	(!gone[u] && state[ENTRY(r, u)] != ASIDE && state[ENTRY(r, u)] != SKIPPED && \
	 !(awaited[ENTRY(r, u)] == XID(w) && in_progress[XID(w)]))

inline nobody_sleeps_in_vain(r)
{
	n = 0;
	do
	:: n < 3 && AT(r, n) != NOBODY ->
		look(AT(r, n), MODE(AT(r, n)), r);
		claim_SLEEP = refused || gone[AT(r, n)] ||
			(n > 0 && EXCUSES(AT(r, 0), AT(r, n), r)) ||
			(n > 1 && EXCUSES(AT(r, 1), AT(r, n), r));
		assert(claim_SLEEP);
		n++
	:: else -> break
	od;
	n = 0
}

proctype claims()
{
	do
	:: d_step {
			acting == 0 && !CAN_WAKE(0) && !CAN_WAKE(1) && !CAN_WAKE(2) ->
			nobody_sleeps_in_vain(0);
			nobody_sleeps_in_vain(1)
		}
#ifdef CYCLES
		progress: skip
#endif
	od
}

init {
	d_step {
		i = 0;
		do
		:: i < 7 -> line[i] = NOBODY; i++
		:: else -> break
		od
	};
	atomic {
		if						/* the lease of the holder */
		:: AGAIN != NOBODY -> granted[AGAIN] = RELEASED; in_progress[XID(AGAIN)] = 1
		:: AGAIN == NOBODY && (BEGINS == 0 || BEGINS == 1) -> held[0] = 1; ends[0] = NEVER
		:: AGAIN == NOBODY && (BEGINS == 0 || BEGINS == 2) -> held[0] = 1; ends[0] = 1
		:: AGAIN == NOBODY && (BEGINS == 0 || BEGINS == 3) ->
			changed_by[0] = 4; will_hold[0] = 1; will_end[0] = NEVER; in_progress[4] = 1
		fi;
		if
		:: AGAIN2 != NOBODY -> granted[AGAIN2] = RELEASED; in_progress[XID(AGAIN2)] = 1
		:: else
		fi;
		if
		:: LINES == 2 -> held[1] = 1; ends[1] = NEVER
		:: else
		fi;
		run waiter(0); run waiter(1);
		if
		:: WAITERS == 3 -> run waiter(2)
		:: else
		fi;
		run holder(); run clock(); run claims()
	}
}
