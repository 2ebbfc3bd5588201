! Conserved and derived quantities, written as "name value" lines for whoever checks the run.
module diagnostics
  use kinds, only: dp
  use deck, only: deck_t
  use grid, only: grid_t
  use exact, only: has_exact, solution
  implicit none

contains

  ! The total amount of all species: the sum of cell averages times the cell's area.
  pure real(dp) function total(g, q)
    type(grid_t), intent(in) :: g
    real(dp), intent(in) :: q(:, :, :)
    total = sum(q) * g%dx * g%dy
  end function total

  ! Root mean square over cells and species of the difference from the exact solution.
  real(dp) function error_l2(d, g, q, t)
    type(deck_t), intent(in) :: d
    type(grid_t), intent(in) :: g
    real(dp), intent(in) :: q(:, :, :), t
    integer :: i, j
    error_l2 = 0.0_dp
    do j = 1, g%ny
      do i = 1, g%nx
        error_l2 = error_l2 + sum((q(i, j, :) - solution(d, g, i, j, t))**2)
      end do
    end do
    error_l2 = sqrt(error_l2 / size(q))
  end function error_l2

  subroutine write_diagnostics(path, d, g, q, t, initial_total)
    character(len=*), intent(in) :: path
    type(deck_t), intent(in) :: d
    type(grid_t), intent(in) :: g
    real(dp), intent(in) :: q(:, :, :), t, initial_total
    integer :: unit
    open(newunit=unit, file=path, status='replace', action='write')
    write(unit, '(a, es24.16e3)') 'minimum ', minval(q), 'maximum ', maxval(q), 'total ', total(g, q)
    if (initial_total > 0.0_dp) write(unit, '(a, es24.16e3)') &
      'total_change ', total(g, q) / (initial_total * exp(-d%decay * t)) - 1.0_dp
    if (has_exact(d)) write(unit, '(a, es24.16e3)') 'error_l2 ', error_l2(d, g, q, t)
    close(unit)
  end subroutine write_diagnostics

end module diagnostics
