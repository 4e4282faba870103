# The commands of the files for containers, run in a folder instead of an image: the extension ends up where the server
# of that image looks for it, and the server starts with what was installed.
#
# Needs a server in Debian's folders, as in the images; scripts/check names its pg_config in SYSTEM_PG_CONFIG.
use strict;
use warnings;

use FindBin;
use PostgreSQL::Test::Utils;
use Test::More;

my $pg_config = $ENV{SYSTEM_PG_CONFIG} // '';
my ($major) = $pg_config =~ m{^/usr/lib/postgresql/(\d+)/bin/pg_config$};

plan skip_all => 'the server is not one of a Debian package' if !defined $major;

my $root = "$FindBin::RealBin/../../..";

# The commands of the RUN lines of a file, but those that install packages, with other folders.
sub commands_of
{
	my ($file, %folder) = @_;
	my $text = slurp_file("$root/contrib/containers/$file") =~ s/\\\n//gr;
	my @commands = grep { !/apt-get/ } $text =~ /^RUN (.*)$/mg;

	foreach (@commands)
	{
		s/\$\{PG_MAJOR\}/$major/g;
		s{(?<![\w/])/(source|installed|extension)\b}{$folder{$1}}g;
		s/\bmake /make -s PG_CONFIG=$pg_config /g;
	}
	return @commands;
}

foreach my $file (qw(Dockerfile Dockerfile.extension))
{
	my $folder = PostgreSQL::Test::Utils::tempdir_short();
	my %folder = map { $_ => "$folder/$_" } qw(source installed extension);

	# Only what is built: other tests write to the tree meanwhile. With the objects, whose times are kept: to compile takes
	# half a minute, and the static checks do it.
	mkdir $folder{source};
	is(system('cp', '-Rp', (map { "$root/$_" } qw(Makefile META.json lease_lock.control src sql lease_run docs)), $folder{source}), 0,
		"$file: a copy of the sources");
	unlink "$folder{source}/src/lease_lock.o";
	foreach my $command (commands_of($file, %folder))
	{
		is(system($command), 0, "$file: " . substr($command =~ s{\Q$folder\E}{}gr, 0, 60));
	}

	my %installed = $file eq 'Dockerfile'
	  ? (library => "$folder{installed}/usr/lib/postgresql/$major/lib", share => "$folder{installed}/usr/share/postgresql/$major")
	  : (library => "$folder{extension}/lib", share => "$folder{extension}/share");
	ok(-f "$installed{library}/lease_lock.so", "$file: the library");
	ok(-f "$installed{share}/extension/lease_lock.control", "$file: the control file");
	ok(-f "$installed{share}/extension/lease_lock--1.0.sql", "$file: the script");
}

done_testing();
