# lease_lock: lease locks in SQL. Needs PostgreSQL 15 or later and its server headers.
#
#   make && make install        build and install for the server that pg_config belongs to
#   make installcheck           test against that server, which has to be running

EXTENSION = lease_lock
MODULE_big = lease_lock
OBJS = $(patsubst %.c,%.o,$(sort $(wildcard src/*.c src/*/*.c)))
DATA = $(wildcard sql/lease_lock--*.sql)
PG_CFLAGS = -Wall -Wextra -Wno-unused-parameter
PG_CPPFLAGS = -I$(srcdir)/src

REGRESS = $(patsubst test/sql/%.sql,%,$(sort $(wildcard test/sql/*.sql)))
REGRESS_OPTS = --inputdir=test --load-extension=lease_lock
ISOLATION = $(patsubst test/specs/%.spec,%,$(sort $(wildcard test/specs/*.spec)))
# pg_isolation_regress finds expected/ only if --outputdir is given.
ISOLATION_OPTS = --inputdir=test --outputdir=.
TAP_TESTS = 1
PROVE_TESTS = test/t/*.pl

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

# PGXS tracks no dependencies unless the server was configured with
# --enable-depend.
$(OBJS): $(wildcard src/*.h src/*/*.h)
