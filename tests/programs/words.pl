# Counts words in a large hash of hashes, sorts, and prints a sample. Same bytes in every run with PERL_HASH_SEED=0.
use strict;
use warnings;

my $count = shift;
my $state = 2463534242;
sub number {
    $state ^= ($state << 13) & 0xFFFFFFFF;
    $state ^= $state >> 17;
    $state ^= ($state << 5) & 0xFFFFFFFF;
    return $state &= 0xFFFFFFFF;
}
my (%seen, @list);
for my $i (0 .. $count - 1) {
    my $word = sprintf "word-%08x", number();
    $seen{$word} = { rank => $i, weight => number() % 10007 };
    push @list, $word;
}
@list = map { substr $_, 6 } sort map { sprintf "%05d %s", $seen{$_}{weight}, $_ } @list;
delete @seen{@list[0 .. $count / 4]};
my $sum = 0;
$sum = ($sum * 31 + $seen{$_}{weight} + $seen{$_}{rank}) % 1000000007 for grep { exists $seen{$_} } @list;
print "$list[$_ * 10]\n" for 0 .. @list / 10 - 1;
print "$sum ", scalar(keys %seen), "\n";
