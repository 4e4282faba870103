# lease_lock: lease locks in SQL. Needs PostgreSQL 15 or later and its server headers.
#
#   make && make install        build and install for the server that pg_config belongs to
#   make installcheck           test against that server, which has to be running

EXTENSION = lease_lock
MODULE_big = lease_lock
OBJS = \
	src/lease_lock.o \
	src/api.o \
	src/acquire.o \
	src/grant.o \
	src/slots.o \
	src/lease.o \
	src/store.o \
	src/store_read.o \
	src/store_write.o \
	src/wait.o \
	src/deadlock.o \
	src/subxact.o \
	src/assert.o \
	src/pin.o \
	src/guard.o \
	src/template.o \
	src/protect.o \
	src/version.o \
	src/purge.o \
	src/worker.o \
	src/stats.o \
	src/events.o \
	src/quota.o \
	src/graph.o \
	src/monitor.o \
	src/printable.o \
	src/clock.o
DATA = $(wildcard sql/lease_lock--*.sql)
PG_CFLAGS = -Wall -Wextra -Wno-unused-parameter

REGRESS = $(patsubst test/sql/%.sql,%,$(sort $(wildcard test/sql/*.sql)))
REGRESS_OPTS = --inputdir=test --load-extension=lease_lock
ISOLATION = $(patsubst test/specs/%.spec,%,$(sort $(wildcard test/specs/*.spec)))
# pg_isolation_regress finds expected/ only when it is told where its output goes.
ISOLATION_OPTS = --inputdir=test --outputdir=.
TAP_TESTS = 1
PROVE_TESTS = test/t/*.pl

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

# PGXS tracks no dependencies unless the server was configured to.
$(OBJS): $(wildcard src/*.h)
