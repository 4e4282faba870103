# lease_lock: lease locks in SQL. Needs PostgreSQL 15 or later and its server headers.
#
#   make && make install        build and install for the server that pg_config belongs to
#   make installcheck           test against that server, which has to be running
#   make dist                   lease_lock-X.Y.Z.zip for PGXN, of what is committed

EXTENSION = lease_lock
MODULE_big = lease_lock

# The folder of this file. A build can run in another one: make -f ../lease_lock/Makefile
source = $(patsubst %/,%,$(dir $(firstword $(MAKEFILE_LIST))))
files = $(patsubst $(source)/%,%,$(sort $(wildcard $(addprefix $(source)/,$(1)))))

# The version of the release. That of the SQL objects lacks its last number, which is for fixes of the library.
DISTVERSION = $(shell sed -n 's/^\t"version": "\(.*\)",$$/\1/p' $(source)/META.json)

OBJS = $(patsubst %.c,%.o,$(call files,src/*.c src/*/*.c))
DATA = $(call files,sql/lease_lock--*.sql)
# Only what is marked PGDLLEXPORT can be seen outside; before version 16, PGXS shows everything. No bitcode: a compiled
# expression that inlines our code would look up what it calls by name, among the functions of all libraries.
override PG_CFLAGS += -Wall -Wextra -Wno-unused-parameter -fvisibility=hidden
override with_llvm = no
PG_CPPFLAGS += -I$(source)/src

REGRESS = $(patsubst test/sql/%.sql,%,$(call files,test/sql/*.sql))
REGRESS_OPTS = --inputdir=$(source)/test --load-extension=lease_lock
ISOLATION = $(patsubst test/specs/%.spec,%,$(call files,test/specs/*.spec))
# pg_isolation_regress finds expected/ only if --outputdir is given.
ISOLATION_OPTS = --inputdir=$(source)/test --outputdir=.
TAP_TESTS = 1
PROVE_TESTS = test/t/*/*.pl lease_run/t/*.pl

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

# PGXS tracks no dependencies unless the server was configured with
# --enable-depend, and it makes no folders.
$(OBJS): $(call files,src/*.h src/*/*.h)
$(OBJS): | $(sort $(addprefix $(CURDIR)/,$(dir $(OBJS))))
$(sort $(addprefix $(CURDIR)/,$(dir $(OBJS)))):
	mkdir -p $@

# The test drivers look for expected/ in the folder that they write to.
installcheck: | $(CURDIR)/expected
$(CURDIR)/expected:
	ln -s $(abspath $(source))/expected $@

# A makefile of PGXS builds a module or a program. The program, lease_run, has its own; CLIENT= leaves it out.
CLIENT ?= lease_run
ifneq ($(CLIENT),)
all: all-client
install: install-client
uninstall: uninstall-client
clean distclean: clean-client
endif
all-client install-client uninstall-client clean-client: %-client:
	mkdir -p lease_run
	$(MAKE) -C lease_run -f $(abspath $(source))/lease_run/Makefile $*
# Both build the program, so a parallel make must not run them at once.
install-client: all-client

dist:
	git archive --format zip --prefix=lease_lock-$(DISTVERSION)/ -o lease_lock-$(DISTVERSION).zip HEAD

.PHONY: dist all-client install-client uninstall-client clean-client
