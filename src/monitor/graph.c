/*-------------------------------------------------------------------------
 *
 * graph.c
 *		Who waits for whom, as a picture in the DOT language of Graphviz.
 *
 * A node is an owner, by name, whatever sessions it has: so a deadlock shows
 * as a circle. An edge is a waiting session. Where an open transaction is in
 * the way, the edge is dashed and leads to it, or to the owner that its own
 * session is waiting for.
 *
 * An owner that the reader may not see is told from others of the same role by
 * a node of its own, but never joined with one that can be seen: that would
 * confirm a guess.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/subtrans.h"
#include "storage/procarray.h"
#include "utils/builtins.h"

#include "base/compat.h"
#include "base/privileges.h"
#include "monitor/monitor.h"
#include "monitor/printable.h"
#include "wait/wait.h"

typedef enum NodeKind
{
	NODE_OWNER,					/* seen by its name */
	NODE_HIDDEN_OWNER,			/* of a role */
	NODE_TRANSACTION,			/* open, of a session that does not wait */
	NODE_NOBODY					/* the lease is free, somebody is about to take it */
} NodeKind;

typedef struct GraphNode
{
	NodeKind	kind;
	const char *owner;
	int			owner_length;
	Oid			role;
	TransactionId xid;
	int			number;
} GraphNode;

typedef struct Graph
{
	StringInfoData text;
	List	   *nodes;
} Graph;

/*
 * Append a name to a label. There, a backslash begins an escape and an
 * ampersand the name of a character.
 */
static void
append_label(StringInfo text, const char *name, int length)
{
	StringInfoData printable;

	initStringInfo(&printable);
	append_printable(&printable, name, length, "\\");
	for (const char *c = printable.data; *c != '\0'; c++)
	{
		if (*c == '"' || *c == '\\')
			appendStringInfoChar(text, '\\');
		appendStringInfoChar(text, *c);
		if (*c == '&')
			appendStringInfoString(text, "amp;");
	}
	pfree(printable.data);
}

static bool
same_node(const GraphNode *a, const GraphNode *b)
{
	return a->kind == b->kind && a->xid == b->xid &&
		(a->kind != NODE_HIDDEN_OWNER || a->role == b->role) &&
		a->owner_length == b->owner_length &&
		memcmp(a->owner, b->owner, a->owner_length) == 0;
}

/* Write a node's statement. */
static void
draw_node(Graph *graph, const GraphNode *node)
{
	StringInfo	text = &graph->text;
	char	   *role;

	appendStringInfo(text, "\tn%d [label=\"", node->number);
	switch (node->kind)
	{
		case NODE_OWNER:
		case NODE_HIDDEN_OWNER:
			role = role_name(node->role);
			if (node->kind == NODE_OWNER)
				append_label(text, node->owner, node->owner_length);
			else
				appendStringInfoString(text, "(hidden)");
			appendStringInfoString(text, "\\nrole ");
			append_label(text, role, strlen(role));
			appendStringInfoString(text, "\"];\n");
			break;
		case NODE_TRANSACTION:
			appendStringInfo(text, "transaction %u\", shape=ellipse];\n", node->xid);
			break;
		case NODE_NOBODY:
			appendStringInfoString(text, "nobody\", shape=plaintext];\n");
			break;
	}
}

/* Get the number of a node, drawing it if it is new. */
static int
node_number(Graph *graph, GraphNode wanted)
{
	GraphNode	   *node;
	ListCell   *cell;

	foreach(cell, graph->nodes)
	{
		node = lfirst(cell);
		if (same_node(node, &wanted))
			return node->number;
	}

	node = palloc(sizeof(GraphNode));
	*node = wanted;
	node->number = list_length(graph->nodes) + 1;
	graph->nodes = lappend(graph->nodes, node);
	draw_node(graph, node);
	return node->number;
}

static int
owner_number(Graph *graph, const char *owner, int length, Oid role)
{
	return node_number(graph, (GraphNode) {
		.kind = may_see_owner(role) ? NODE_OWNER : NODE_HIDDEN_OWNER,
		.owner = owner, .owner_length = length, .role = role
	});
}

static int
waiter_number(Graph *graph, const Waiter *waiter)
{
	return owner_number(graph, waiter->owner, waiter->owner_length, waiter->role);
}

/* The node of a session that runs a transaction, by what it waits for itself. */
static int
transaction_number(Graph *graph, TransactionId xid, List *blocked)
{
	TransactionId top = SubTransGetTopmostTransaction(xid);
	int			pid = BackendXidGetPid(top);
	ListCell   *cell;

	foreach(cell, blocked)
	{
		const Waiter *waiter = ((BlockedWaiter *) lfirst(cell))->waiter;

		if (waiter->pid == pid)
			return waiter_number(graph, waiter);
	}
	return node_number(graph, (GraphNode) {.kind = NODE_TRANSACTION, .owner = "", .xid = top});
}

/* The node of what is in the way of a waiter. */
static int
blocker_number(Graph *graph, const BlockedWaiter *b, List *blocked)
{
	if (TransactionIdIsValid(b->busy_xid))
		return transaction_number(graph, b->busy_xid, blocked);
	if (b->holder_owner != NULL)
		return owner_number(graph, VARDATA_ANY(b->holder_owner), VARSIZE_ANY_EXHDR(b->holder_owner),
							b->holder_role);
	return node_number(graph, (GraphNode) {.kind = NODE_NOBODY, .owner = ""});
}

static void
draw_edge(Graph *graph, const BlockedWaiter *b, List *blocked)
{
	int			from = waiter_number(graph, b->waiter);
	int			to = blocker_number(graph, b, blocked);

	appendStringInfo(&graph->text, "\tn%d -> n%d [label=\"", from, to);
	append_label(&graph->text, b->waiter->resource, b->waiter->resource_length);
	appendStringInfo(&graph->text, "\\nprocess %d, place %d\"%s];\n", b->waiter->pid, b->position,
					 TransactionIdIsValid(b->busy_xid) ? ", style=dashed" : "");
}

char *
draw_wait_graph(void)
{
	List	   *blocked = blocked_waiters();
	Graph		graph = {.nodes = NIL};
	ListCell   *cell;

	initStringInfo(&graph.text);
	appendStringInfoString(&graph.text, "digraph lease_waits {\n\tnode [shape=box];\n");
	foreach(cell, blocked)
		draw_edge(&graph, lfirst(cell), blocked);
	appendStringInfoChar(&graph.text, '}');
	return graph.text.data;
}
