# The reference has an entry for every function, view and setting of the extension, with the
# arguments, types, defaults and privileges that the catalog has, and for nothing else.
# error_table does the same for errors.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $docs = "$FindBin::RealBin/../../../docs";
my $node = start_node('reference', "shared_preload_libraries = 'lease_lock'");

# Rows of the table: setting, type, unit, default, range, context.
sub documented
{
	my @rows;

	foreach my $line (grep { /^\| \[`lease_lock\./ } split /\n/, slurp_file("$docs/operations.md"))
	{
		my @cells = map { s/^\s+|\s+$//gr } (split /\|/, $line, -1)[ 1 .. 6 ];
		my ($name, $anchor) = $cells[0] =~ /^\[`([a-z_.]+)`\]\(reference\.md#([a-z_]+)\)$/
		  or die "cannot read: $line";
		is($anchor, $name =~ s/\.//r, "$name: the link goes to its own section");
		$cells[0] = $name;
		$cells[3] =~ s/^`(.*)`$/$1/;
		push @rows, join(' | ', @cells);
	}
	return sort @rows;
}

my @actual = sort split /\n/, $node->safe_psql('postgres', q{
	SELECT concat_ws(' | ', name, vartype, coalesce(unit, ''), boot_val,
		CASE WHEN vartype = 'enum' THEN array_to_string(enumvals, ', ')
			WHEN min_val IS NOT NULL THEN min_val || ' to ' || max_val
			ELSE '' END, context)
	FROM pg_settings WHERE name LIKE 'lease\_lock.%'});

cmp_ok(scalar @actual, '>=', 4, 'the extension has settings');
is_deeply([ documented() ], \@actual, 'docs/operations.md has the table of pg_settings');

my $reference = slurp_file("$docs/reference.md");
my %entry = $reference =~ /^### (lease_\S+)\n(.*?)(?=^#{2,3} |\z)/msg;
my ($index) = $reference =~ /\A(.*?)^## /ms;
my %indexed = map { $_ => 1 } $index =~ /^\| \[(lease_[\w.]+)\]\(#/mg;

is_deeply([ sort keys %indexed ], [ sort keys %entry ], 'the index has every entry');

foreach my $name (map { (split / /)[0] } @actual)
{
	my ($default, $shown) = split /\|/,
	  $node->safe_psql('postgres', "SELECT boot_val, current_setting(name) FROM pg_settings WHERE name = '$name'");

	next unless ok($entry{$name}, "$name has an entry") && length $default && $name ne 'lease_lock.clock';
	my ($documented) = $entry{$name} =~ /^(?:\w|`).*?default `([^`]*)`/m;
	ok(defined $documented && ($documented eq $default || $documented eq $shown), "$name has the default $default");
}

# The names of types, defaults and results, as a person writes them.
sub plain
{
	return $_[0] =~ s/timestamp with time zone/timestamptz/gr =~ s/::[a-z]+//gr =~ s/'00:00:00'/'0'/gr;
}

my $members = q{SELECT objid FROM pg_depend WHERE deptype = 'e' AND refobjid =
	(SELECT oid FROM pg_extension WHERE extname = 'lease_lock')};
my %view;
foreach my $column (split /\n/, $node->safe_psql('postgres', qq{
	SELECT relname, attname || ' ' || format_type(atttypid, atttypmod)
	FROM pg_attribute JOIN pg_class AS c ON c.oid = attrelid
	WHERE relkind = 'v' AND attnum > 0 AND c.oid IN ($members) ORDER BY relname, attnum}))
{
	my ($name, $text) = split /\|/, $column;

	$view{$name}{columns} .= "$text\n";
}
$view{$_}{public} = $node->safe_psql('postgres',
	qq{SELECT has_table_privilege('public', '$_', 'SELECT')}) foreach keys %view;

# Functions behind views have no entry of their own.
my (%function, %public);
foreach (split /\n/, $node->safe_psql('postgres', qq{
	SELECT proname, has_function_privilege('public', p.oid, 'EXECUTE'),
		CASE prokind WHEN 'p' THEN 'CALL ' ELSE '' END || proname || '(' || coalesce(arguments, '') || ')'
		|| CASE prokind WHEN 'p' THEN '' ELSE ' → ' || pg_get_function_result(p.oid) || coalesce(' (' || results || ')', '') END
	FROM pg_proc AS p CROSS JOIN LATERAL (
		SELECT string_agg(concat_ws(' ', CASE mode WHEN 'b' THEN 'INOUT' END, quote_ident(proargnames[i]), format_type(type, NULL),
				'DEFAULT ' || replace(pg_get_function_arg_default(p.oid, i::integer), 'NULL::' || format_type(type, NULL), 'NULL')),
				', ' ORDER BY i) FILTER (WHERE mode <> 'o') AS arguments,
			string_agg(proargnames[i] || ' ' || format_type(type, NULL), ', ' ORDER BY i) FILTER (WHERE mode = 'o') AS results
		FROM unnest(coalesce(proallargtypes, proargtypes::oid[])) WITH ORDINALITY AS a(type, i)
			CROSS JOIN LATERAL (SELECT coalesce(proargmodes[i]::text, 'i') AS mode) AS m
	) AS a
	WHERE p.oid IN ($members) ORDER BY 3}))
{
	my ($name, $public, $signature) = split /\|/;

	next if $view{$name};
	push @{ $function{$name} }, plain($signature);
	$public{$name} = $public;
}

cmp_ok(scalar keys %function, '>=', 20, 'the extension has functions');
is_deeply([ grep { !/\./ } sort keys %entry ], [ sort keys %function, keys %view ],
	'an entry for each function and view, and for nothing else');

foreach my $name (sort keys %function)
{
	my ($block) = ($entry{$name} // '') =~ /^```\n(.*?)^```$/ms;
	my @signatures = split /\n(?=lease_|CALL )/, $block // '';

	s/\s+/ /g, s/^ | $//g foreach @signatures;
	is_deeply([ sort @signatures ], [ sort @{ $function{$name} } ], "$name: arguments, defaults and result");
}

foreach my $name (sort keys %view)
{
	my $columns = join '', map { "$_\n" } map { "$$_[0] $$_[1]" }
	  map { [/^\| `(\w+)` \| ([^|]+?) \|/] } grep { /^\| `\w+` \|/ } split /\n/, $entry{$name} // '';

	is($columns, plain($view{$name}{columns}), "$name: columns");
	$public{$name} = $view{$name}{public};
}

# PUBLIC may use what the entry does not keep for others.
my ($exceptions) = $reference =~ /^## Privileges\n\n(.*?)\n\n/ms;
foreach my $name (sort keys %public)
{
	my $kept = ($entry{$name} // '') =~ /\*\*Privileges\*\*: (?:the owner of the extension|as `lease_watch`)/ ? 'f' : 't';

	is($kept, $public{$name}, "$name: privilege of PUBLIC");
	is($exceptions =~ /`$name`/ ? 'f' : 't', $public{$name}, "$name: privilege of PUBLIC in the list");
}

# What CREATE EXTENSION adds, for the reader who decides.
like(slurp_file("$docs/before-you-install.md"), qr/two tables, three sequences, five views, functions\./, 'what it adds to a database');
is($node->safe_psql('postgres', qq{
		SELECT string_agg(relkind::text || ' ' || count, ', ' ORDER BY relkind::text COLLATE "C")
		FROM (SELECT relkind, count(*) FROM pg_class WHERE oid IN ($members) GROUP BY relkind) AS c}),
	'S 3, r 2, v 5', 'two tables, three sequences, five views');

# Each has a description that ends like a sentence.
is($node->safe_psql('postgres', q{
		SELECT string_agg(name, ' ') FROM pg_settings
		WHERE name LIKE 'lease\_lock.%' AND (short_desc NOT LIKE '%.' OR extra_desc NOT LIKE '%.')}),
	'', 'descriptions are sentences');

$node->stop;
done_testing();
