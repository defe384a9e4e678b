# Builds and installs what C and C++ programs need: the shared and the static library, headers, files for pkg-config and CMake,
# and the command line with its manual and completions for shells, and the demo. Rust programs have no use for it; they depend on
# the crate.
#
#   make                               builds with cargo
#   make install PREFIX=$HOME/dcl      installs there; no root needed
#   make install-strip PREFIX=...      the same, without symbols and line tables for debuggers
#   make install DESTDIR=stage         for packagers: puts into a staging folder what will lie in PREFIX
#   make uninstall PREFIX=$HOME/dcl    removes what was installed
#
# `make install` builds only what is not there, or of another version, so that it can run as root after a `make` as another user.
#
# A Makefile and not cargo-c: that is one more program, which most people would first have to build from hundreds of crates,
# while this library is to need no more than Rust and a C compiler. What cargo-c would do is the few lines below.

PREFIX ?= /usr/local
# The files for pkg-config have to say it in full.
override PREFIX := $(abspath $(PREFIX))
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DATADIR ?= $(PREFIX)/share
MANDIR ?= $(DATADIR)/man
CARGO ?= cargo
INSTALL ?= install

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
MAJOR := $(word 1,$(subst ., ,$(VERSION)))
MINOR := $(word 2,$(subst ., ,$(VERSION)))
# The same as in bindings/capi/build.rs: before 1.0 a new minor version may change the ABI.
SOVERSION := $(if $(filter 0,$(MAJOR)),$(MAJOR).$(MINOR),$(MAJOR))

# What a program needs besides libdistcollective.a: what this prints, each once.
# cargo rustc --package distcollective-capi --crate-type staticlib -- --print native-static-libs
LIBS_PRIVATE := -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc

# The products.
PACKAGES := --package distcollective-capi --package distcollective-cli --package distcollective-samples

BUILT := $(or $(CARGO_TARGET_DIR),target)/dist
SHARED := $(BUILT)/libdistcollective.so
STATIC := $(BUILT)/libdistcollective.a
PROGRAM := $(BUILT)/distcollective
DEMO := $(BUILT)/sample_dist_collective
# What writes the manual and the completions: another file where PROGRAM is for another processor.
WRITER ?= $(PROGRAM)
HEADERS := include/distcollective.h include/distcollective.hpp

SONAME := libdistcollective.so.$(SOVERSION)
LINKED := libdistcollective.so.$(VERSION)
PKGCONFIGDIR := $(LIBDIR)/pkgconfig
CMAKEDIR := $(LIBDIR)/cmake/distcollective
MAN1DIR := $(MANDIR)/man1
# Where shells look for what completes a program.
BASH_COMPLETION := $(DATADIR)/bash-completion/completions/distcollective
ZSH_COMPLETION := $(DATADIR)/zsh/site-functions/_distcollective
FISH_COMPLETION := $(DATADIR)/fish/vendor_completions.d/distcollective.fish

# Fills in the @...@ of a template. Paths inside the prefix are written relative to it.
fill = sed -e 's|@VERSION@|$(VERSION)|g' -e 's|@MAJOR@|$(MAJOR)|g' -e 's|@MINOR@|$(MINOR)|g' \
	-e 's|@SONAME@|$(SONAME)|g' -e 's|@PREFIX@|$(PREFIX)|g' \
	-e 's|@LIBDIR@|$(patsubst $(PREFIX)/%,$${prefix}/%,$(LIBDIR))|g' \
	-e 's|@INCLUDEDIR@|$(patsubst $(PREFIX)/%,$${prefix}/%,$(INCLUDEDIR))|g' \
	-e "s|@CMAKE_TO_INCLUDEDIR@|$$(realpath -m --relative-to='$(CMAKEDIR)' '$(INCLUDEDIR)')|g" \
	-e 's|@LIBS_PRIVATE@|$(LIBS_PRIVATE)|g' -e 's|@LIBS_PRIVATE_CMAKE@|$(subst $(space),;,$(patsubst -l%,%,$(LIBS_PRIVATE)))|g'
empty :=
space := $(empty) $(empty)

.PHONY: all install install-strip uninstall

all:
	$(CARGO) build --profile dist --locked $(PACKAGES)
	touch $(SHARED) $(STATIC) $(PROGRAM) $(DEMO)

# What is older may have another version. cargo does not touch what need not be built anew.
$(SHARED) $(STATIC) $(PROGRAM) $(DEMO) &: Cargo.toml
	$(CARGO) build --profile dist --locked $(PACKAGES)
	touch $(SHARED) $(STATIC) $(PROGRAM) $(DEMO)

install: $(SHARED) $(STATIC) $(PROGRAM) $(DEMO)
	$(INSTALL) $(STRIP_OPTION) -D -m 755 $(SHARED) '$(DESTDIR)$(LIBDIR)/$(LINKED)'
	ln -sf $(LINKED) '$(DESTDIR)$(LIBDIR)/$(SONAME)'
	ln -sf $(SONAME) '$(DESTDIR)$(LIBDIR)/libdistcollective.so'
	$(INSTALL) -m 644 $(STATIC) '$(DESTDIR)$(LIBDIR)/libdistcollective.a'
	$(INSTALL) -d '$(DESTDIR)$(INCLUDEDIR)' '$(DESTDIR)$(PKGCONFIGDIR)' '$(DESTDIR)$(CMAKEDIR)'
	$(INSTALL) -m 644 $(HEADERS) '$(DESTDIR)$(INCLUDEDIR)'
	$(fill) packaging/distcollective.pc.in > '$(DESTDIR)$(PKGCONFIGDIR)/distcollective.pc'
	$(fill) packaging/distcollective-config.cmake.in > '$(DESTDIR)$(CMAKEDIR)/distcollective-config.cmake'
	$(fill) packaging/distcollective-config-version.cmake.in > '$(DESTDIR)$(CMAKEDIR)/distcollective-config-version.cmake'
	$(INSTALL) $(STRIP_OPTION) -D -m 755 $(PROGRAM) '$(DESTDIR)$(BINDIR)/distcollective'
	$(INSTALL) -d '$(DESTDIR)$(MAN1DIR)' '$(DESTDIR)$(dir $(BASH_COMPLETION))' '$(DESTDIR)$(dir $(ZSH_COMPLETION))' \
		'$(DESTDIR)$(dir $(FISH_COMPLETION))'
	$(WRITER) man --directory '$(DESTDIR)$(MAN1DIR)'
	$(WRITER) completions bash > '$(DESTDIR)$(BASH_COMPLETION)'
	$(WRITER) completions zsh > '$(DESTDIR)$(ZSH_COMPLETION)'
	$(WRITER) completions fish > '$(DESTDIR)$(FISH_COMPLETION)'
	$(INSTALL) $(STRIP_OPTION) -D -m 755 $(DEMO) '$(DESTDIR)$(BINDIR)/sample_dist_collective'

install-strip:
	$(MAKE) install STRIP_OPTION=-s
	strip --strip-debug '$(DESTDIR)$(LIBDIR)/libdistcollective.a'

uninstall:
	rm -f '$(DESTDIR)$(LIBDIR)/$(LINKED)' '$(DESTDIR)$(LIBDIR)/$(SONAME)' '$(DESTDIR)$(LIBDIR)/libdistcollective.so' \
		'$(DESTDIR)$(LIBDIR)/libdistcollective.a' '$(DESTDIR)$(PKGCONFIGDIR)/distcollective.pc' \
		'$(DESTDIR)$(BINDIR)/distcollective' '$(DESTDIR)$(BINDIR)/sample_dist_collective' '$(DESTDIR)$(MAN1DIR)/distcollective.1' \
		'$(DESTDIR)$(MAN1DIR)/distcollective-'*.1 '$(DESTDIR)$(BASH_COMPLETION)' '$(DESTDIR)$(ZSH_COMPLETION)' \
		'$(DESTDIR)$(FISH_COMPLETION)' $(patsubst include/%,'$(DESTDIR)$(INCLUDEDIR)/%',$(HEADERS))
	rm -rf '$(DESTDIR)$(CMAKEDIR)'
