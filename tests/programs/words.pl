# Builds a large list of records and a hash of words, sorts a part, and prints a sample. Same bytes in every run with
# PERL_HASH_SEED=0. Most passes go in the order of building: at a quarter of its memory a program that jumps about
# in all of it waits for the disk for minutes, under the kernel's swap as well.
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
my (@records, %seen);
for my $i (0 .. $count - 1) {
    my $word = sprintf "word-%08x", number();
    push @records, { word => $word, rank => $i, weight => number() % 10007, note => sprintf("%0500d", $i) };
    $seen{$word} = $i if $i % 16 == 0;
}
my $sum = 0;
$_->{weight} = ($_->{weight} * 31 + 1) % 10007 for @records;
$sum = ($sum * 31 + $_->{weight} + $_->{rank}) % 1000000007 for @records;
my @order = sort map { sprintf "%05d %s", $_->{weight}, $_->{word} } @records[0 .. $count / 8];
my $known = grep { exists $seen{ $_->{word} } } @records[0 .. $count / 16];
print "$order[$_ * 10]\n" for 0 .. @order / 10 - 1;
print "$_->{word} $_->{weight} $_->{note}\n" for grep { $_->{rank} % 10 == 0 } @records;
print "$sum $known ", scalar(keys %seen), "\n";
