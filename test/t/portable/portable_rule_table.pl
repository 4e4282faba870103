# The rule table (races/rule_table.pl) against the portable edition: the same answers, except for those that it names.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;

$ENV{LEASE_EDITION} = 'portable';
do "$FindBin::RealBin/../races/rule_table.pl";
die $@ if $@;
