# The model of random calls (races/model.pl) against the portable edition: it answers the same.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;

$ENV{LEASE_EDITION} = 'portable';
$ENV{MODEL_SEQUENCES} //= 100;
do "$FindBin::RealBin/../races/model.pl";
die $@ if $@;
